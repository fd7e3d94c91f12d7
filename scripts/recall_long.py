"""Facts as people state them, in long sentences, and what they ask later."""

TUNING = (
    (
        "By the way, I should mention that my sister Clara, who moved to Bristol last "
        "year with her two kids, works as a vet in a small clinic near the harbour.",
        "What does my sister do for a living?",
    ),
    (
        "I've been thinking about dinner on Saturday, and since Tom is vegetarian I will "
        "probably make the mushroom lasagne with the recipe from grandma.",
        "What was I going to cook for Tom?",
    ),
    (
        "So the plan is that we leave on the 14th of May, take the night train from "
        "Vienna, and stay in a small hotel near the station in Venice for three nights.",
        "When do we leave for Venice?",
    ),
    (
        "Just so you know, the production database lives on db-prod-3 and nobody except "
        "Marta has the root password for it.",
        "Who has the root password?",
    ),
    (
        "We decided in yesterday's meeting to postpone the release of version 2.4 until "
        "after the security audit is finished in late October.",
        "Until when is the release postponed?",
    ),
    (
        "I'm writing a fantasy novel in which a young mapmaker named Elin discovers that "
        "the maps she draws change the land itself.",
        "What is the name of the mapmaker in my novel?",
    ),
    (
        "My budget for the whole laptop is about 1200 euros, but I could stretch to 1400 "
        "if the screen is really good.",
        "How much can I spend on the laptop?",
    ),
    (
        "Please always answer in metric units because I don't understand inches and Fahrenheit.",
        "Which units do I prefer?",
    ),
    (
        "My doctor told me last week that my cholesterol is too high, so I am trying to "
        "eat less butter and cheese.",
        "What did the doctor say about my cholesterol?",
    ),
    (
        "The API key for the weather service has to be sent in the header X-Weather-"
        "Token, not in the URL.",
        "In which header goes the weather API key?",
    ),
    (
        "Our daughter starts school in September at the Montessori school on Linden Road,"
        " and we still need to buy her a backpack.",
        "Which school does our daughter go to?",
    ),
    (
        "I broke my left wrist when I fell off a ladder in 2019, and it still hurts when "
        "I type for a long time.",
        "Which wrist did I break?",
    ),
)

# Never tune anything on these.
REPORTING = (
    (
        "Oh, and before I forget, my brother-in-law Idris, the one with the red van, is a"
        " carpenter in Leeds and might help us with the stairs.",
        "What does my brother-in-law do?",
    ),
    (
        "I was reading about ferries yesterday and booked the one to Tallinn that departs"
        " at 17:20 on Thursday, because the earlier ones were full.",
        "When does my ferry leave?",
    ),
    (
        "We keep the logs of the payment service for 45 days, then a job on the machine "
        "called heron deletes them.",
        "How long are the logs of the payment service kept?",
    ),
    (
        "In my story the smuggler is called Tamsin, she is about thirty and has a scar on"
        " her left hand from a fight in Marseille.",
        "Where did my smuggler get her scar?",
    ),
    (
        "I can't eat shellfish, it gives me a rash, so please keep that in mind when you "
        "suggest recipes.",
        "Is there something I cannot eat?",
    ),
    (
        "The landlord wrote that the rent goes up to 1,020 pounds from January, which is "
        "a lot for two rooms.",
        "How much will the rent be?",
    ),
    (
        "For the wedding in Galway I need a suit, shoes and a present, and I have about "
        "three weeks left.",
        "Where is the wedding?",
    ),
    (
        "Our printer at the office, a Brother L2350, keeps losing the wifi connection "
        "whenever the router restarts.",
        "Which printer do we have at the office?",
    ),
    (
        "My physics exam has been moved from Friday to Saturday morning because the hall "
        "is needed for an election.",
        "On what day is my physics exam?",
    ),
    (
        "Nadia borrowed my tent for the festival and said that she would bring it back at"
        " the end of the month.",
        "Who has my tent?",
    ),
    (
        "I usually run about eight kilometres before breakfast, except on Sundays when I sleep in.",
        "How far do I run before breakfast?",
    ),
    (
        "The tests on the staging cluster fail because node 12 has a broken disk, and "
        "nobody will replace it before Monday.",
        "Why do the tests on staging fail?",
    ),
)
