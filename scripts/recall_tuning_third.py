"""More of them, by somebody who did not know the rules of recall."""

from mlxchat.bench.recall_set import Fact, RecallSet

FACTS = (
    Fact(
        "My sister Hannah is getting married on June 14th.", "When's Hannah's wedding?", "June 14th"
    ),
    Fact(
        "The wifi password at the cabin is bluebadger77.",
        "What do I type to get online at the cabin?",
        "bluebadger77",
    ),
    Fact(
        "I'm allergic to shellfish, especially shrimp and crab.",
        "Which food am I not supposed to eat because of my allergy?",
        "shellfish",
    ),
    Fact(
        "Our new puppy is a beagle and we call him Waffles.",
        "what's the puppy's name again?",
        "Waffles",
    ),
    Fact(
        "The quarterly budget review got scheduled for October 3rd at noon.",
        "When do we go over the budget?",
        "October 3rd",
    ),
    Fact(
        "My landlord's name is Mr. Petrakis and he lives downstairs.",
        "Who is my landlord?",
        "Petrakis",
    ),
    Fact("I parked the car on level 4B of the airport garage.", "Where did I leave the car?", "4B"),
    Fact(
        "The hero of my novel is a lighthouse keeper called Orlan.",
        "How did I name the main character of my novel?",
        "Orlan",
    ),
    Fact(
        "Our staging database runs on port 5439, not the default one.",
        "Which port do I connect to for staging?",
        "5439",
    ),
    Fact(
        "My grandmother was born in Trieste before the war.",
        "Which city did my grandma come from?",
        "Trieste",
    ),
    Fact(
        "We are painting the bedroom in a shade called Misty Sage.",
        "what colour did we choose for the bedroom?",
        "Misty Sage",
    ),
    Fact(
        "My dentist appointment is next Thursday at 8:45.",
        "What time do I have to be at the dentist?",
        "8:45",
    ),
    Fact("I wear size 43 in running shoes, wide fit.", "What's my shoe size?", "43"),
    Fact(
        "The contractor quoted us 12,800 dollars for the kitchen remodel.",
        "How much would the kitchen cost us?",
        "12,800 dollars",
    ),
    Fact(
        "My best friend from college is Priya, she moved to Oslo.",
        "Where does Priya live now?",
        "Oslo",
    ),
    Fact("The alarm code for the shop is 2291.", "How do I disarm the shop alarm?", "2291"),
    Fact(
        "I take 50 mg of sertraline every morning with breakfast.",
        "What's the name of the medication I'm on?",
        "sertraline",
    ),
    Fact("My flight to Lisbon leaves from gate C17.", "Which gate do I go to for Lisbon?", "C17"),
    Fact(
        "Our team decided to write the new backend in Elixir.",
        "What language did the team pick for the backend?",
        "Elixir",
    ),
    Fact("My son's math teacher is called Mrs. Okafor.", "Who teaches my son math?", "Mrs. Okafor"),
    Fact(
        "The bakery near us closes at 2pm on Sundays.",
        "Until what time can I buy bread at the bakery on a Sunday?",
        "2pm",
    ),
    Fact(
        "We keep the spare house key under the third flowerpot.",
        "Where's the spare key hidden?",
        "under the third flowerpot",
    ),
    Fact(
        "My thesis advisor is Professor Lindqvist from the physics department.",
        "Remind me, who's advising my thesis?",
        "Professor Lindqvist",
    ),
    Fact(
        "I'm training for the Chicago marathon this fall.",
        "Which marathon did I sign up for?",
        "Chicago",
    ),
    Fact(
        "My dad has been retired since 2016 and plays chess all day.",
        "What year did dad stop working?",
        "2016",
    ),
    Fact(
        "The villain in our campaign is a lich named Vorthax.",
        "who's the bad guy in the campaign?",
        "Vorthax",
    ),
    Fact(
        "Our cat only eats the salmon flavored dry food.",
        "Which flavor does the cat like?",
        "salmon",
    ),
    Fact(
        "The deadline for the grant application is February 28.",
        "Until when can we submit the grant application?",
        "February 28",
    ),
    Fact(
        "My favorite band of all time is Fleetwood Mac.",
        "Which band do I love most?",
        "Fleetwood Mac",
    ),
    Fact(
        "The plumber is called Dale and his number is 555-0172.",
        "What's the plumber's phone number?",
        "555-0172",
    ),
    Fact("I work as a radiographer at a children's hospital.", "What is my job?", "radiographer"),
    Fact(
        "The garden shed is going to be 3 by 4 meters.",
        "How big will the shed be?",
        "3 by 4 meters",
    ),
    Fact("My nephew Leo turned seven last weekend.", "How old is Leo?", "seven"),
    Fact(
        "We booked a cottage in Cornwall for the summer holidays.",
        "Where are we going this summer?",
        "Cornwall",
    ),
    Fact(
        "The S3 bucket with our backups is called nightowl-archive.",
        "What's the bucket name for the backups?",
        "nightowl-archive",
    ),
    Fact(
        "My boss wants the slides in 16:9 with the Garamond font.",
        "Which font does my boss want in the slides?",
        "Garamond",
    ),
    Fact(
        "I drive a 2011 Subaru Outback with a dent in the door.",
        "what kind of car do I drive?",
        "Subaru Outback",
    ),
    Fact(
        "Our choir rehearses every Tuesday evening in the old chapel.",
        "On which day is choir practice?",
        "Tuesday",
    ),
    Fact(
        "My mother-in-law can't stand cilantro in anything.",
        "Which herb should I leave out when my mother-in-law eats with us?",
        "cilantro",
    ),
    Fact(
        "The locker at my gym has the combination 18-32-6.",
        "How do I open my gym locker?",
        "18-32-6",
    ),
    Fact(
        "The couple downstairs named their baby Rosalind.",
        "What's the baby downstairs called?",
        "Rosalind",
    ),
    Fact(
        "My startup makes sensors for beehives and it's called Humly.",
        "What's the name of my startup?",
        "Humly",
    ),
    Fact(
        "I learned to play the cello when I was nine.",
        "Which instrument did I learn as a kid?",
        "cello",
    ),
    Fact(
        "The book club is reading Middlemarch this month.",
        "What are we reading for the book club?",
        "Middlemarch",
    ),
    Fact(
        "My electricity provider is Greenvolt and I pay 96 euros monthly.",
        "How much do I pay for electricity?",
        "96 euros",
    ),
    Fact(
        "The planet in my sci-fi story has two moons and is called Keshet.",
        "What name did I give the planet?",
        "Keshet",
    ),
    Fact(
        "My physiotherapist told me to do the knee stretches twice a day.",
        "How often should I stretch my knee?",
        "twice a day",
    ),
    Fact(
        "I'm saving up for a Nikon Z6 camera.",
        "Which camera am I putting money aside for?",
        "Nikon Z6",
    ),
    Fact(
        "Our anniversary is on September 9, we married in a barn.",
        "what date is our anniversary?",
        "September 9",
    ),
    Fact(
        "The new intern starts Monday and his name is Tobias.",
        "Who's the intern joining us?",
        "Tobias",
    ),
    Fact(
        "My passport expires in March 2027.", "How long is my passport still valid?", "March 2027"
    ),
    Fact(
        "Grandpa's lasagna recipe needs a pinch of nutmeg in the sauce.",
        "What spice goes in grandpa's lasagna?",
        "nutmeg",
    ),
    Fact(
        "The meeting room on our floor is named Kilimanjaro.",
        "How is the meeting room called?",
        "Kilimanjaro",
    ),
    Fact(
        "My daughter wants a telescope for her birthday.",
        "What does my daughter wish for?",
        "telescope",
    ),
    Fact("We have six hens and one rooster behind the house.", "How many hens do we keep?", "six"),
    Fact(
        "The invoice for the Halvorsen account is number 40718.",
        "What's the Halvorsen invoice number?",
        "40718",
    ),
    Fact(
        "My ex-roommate Glenn still owes me 220 bucks.",
        "How much money does Glenn have to give back?",
        "220 bucks",
    ),
    Fact(
        "The tomatoes I planted this year are a variety named Black Krim.",
        "Which tomatoes did I plant?",
        "Black Krim",
    ),
    Fact(
        "My blood type is O negative, I donate regularly.",
        "What blood group do I have?",
        "O negative",
    ),
    Fact(
        "My yoga class takes place at the Lotus Loft studio.", "Where do I do yoga?", "Lotus Loft"
    ),
    Fact(
        "The release branch for the mobile app is called rc-falcon.",
        "Which branch do we ship the mobile app from?",
        "rc-falcon",
    ),
    Fact(
        "My uncle Ray used to be a firefighter in Tulsa.",
        "What did uncle Ray do for a living?",
        "firefighter",
    ),
    Fact("Our couch is 218 cm wide and barely fits the wall.", "How wide is the couch?", "218 cm"),
    Fact("I always get my hair cut by Simone on Elm Street.", "Who cuts my hair?", "Simone"),
    Fact(
        "The kids' bus stops in front of the library at 7:20.",
        "When does the kids' bus come?",
        "7:20",
    ),
    Fact(
        "I'd like the podcast episodes to last about 35 minutes.",
        "How long did I want my podcast episodes to be?",
        "35 minutes",
    ),
    Fact(
        "My tax accountant recommended that I file form 8829.",
        "Which form did the accountant tell me to file?",
        "8829",
    ),
    Fact(
        "The printer at the office needs cartridge HP 305XL.",
        "What cartridge do I have to order for the printer?",
        "305XL",
    ),
    Fact(
        "My screen name in the game is MossyKnight.", "What am I called in the game?", "MossyKnight"
    ),
    Fact(
        "We're going to serve mushroom risotto at the dinner party.",
        "What were we going to cook for the dinner party?",
        "mushroom risotto",
    ),
    Fact(
        "My cousin Elodie studies marine biology in Brest.",
        "What is Elodie studying?",
        "marine biology",
    ),
    Fact(
        "The museum I volunteer at is devoted to typewriters.",
        "What's the museum about where I help out?",
        "typewriters",
    ),
    Fact(
        "My left ear has been ringing since the Metallica concert.",
        "After which concert did the ringing in my ear start?",
        "Metallica",
    ),
    Fact(
        "The serial number of my bike is WTU7734K.",
        "I have to report my bike stolen, what's its serial?",
        "WTU7734K",
    ),
    Fact(
        "Our local pub quiz team is called the Quizzard of Oz.",
        "What's our quiz team's name?",
        "Quizzard of Oz",
    ),
    Fact(
        "My neighbor across the street, Ingrid, makes pottery.", "What's Ingrid's hobby?", "pottery"
    ),
    Fact(
        "I finally decided my tattoo will be a heron.", "Which bird am I getting tattooed?", "heron"
    ),
    Fact(
        "The washing machine has been showing error E18 since yesterday.",
        "What error code was the washing machine giving?",
        "E18",
    ),
    Fact(
        "My language exchange partner Kenji is a retired pilot.",
        "What was Kenji's profession?",
        "pilot",
    ),
    Fact(
        "The sermon this week is based on the book of Ruth.",
        "On which book is the sermon based?",
        "Ruth",
    ),
    Fact(
        "The strategy workshop takes place in Hamburg.",
        "In which city is the strategy workshop?",
        "Leipzig",
        "The strategy workshop has been moved to Leipzig.",
    ),
    Fact(
        "My brother Marcus works for a bank called Northgate.",
        "Where does Marcus work?",
        "Zephyr Airlines",
        "Big news, Marcus quit and started at Zephyr Airlines.",
    ),
    Fact(
        "I set the API rate limit to 100 requests per minute.",
        "What's the current API rate limit?",
        "250",
        "I raised the API rate limit to 250 now.",
    ),
    Fact(
        "We want to call our sailboat Sea Biscuit.",
        "What's the name of our boat?",
        "Tangerine",
        "The kids voted, so we'll paint Tangerine on her hull instead.",
    ),
    Fact(
        "The piano recital is on May 5th in the town hall.",
        "When is the recital?",
        "May 19th",
        "The piano recital was postponed to May 19th.",
    ),
    Fact(
        "I weigh 84 kilos and want to lose some.",
        "How much do I weigh at the moment?",
        "79 kilos",
        "Stepped on the scale today and it's down to 79 kilos!",
    ),
    Fact(
        "My detective story is set in Edinburgh in the 1890s.",
        "Where does my detective story take place?",
        "Prague",
        "I changed my mind, the whole investigation happens in Prague now.",
    ),
    Fact(
        "Our rent is 1,150 a month including heating.",
        "How much rent do we pay?",
        "1,240",
        "Starting in January we'll have to hand over 1,240 for this flat.",
    ),
    Fact(
        "The head of our design team is Carla Mendes.",
        "Who leads design?",
        "Vikram",
        "Carla left the company, so now everything visual goes through Vikram.",
    ),
    Fact(
        "My phone's PIN used to be my birthday, now it's 6614.",
        "what's my phone PIN",
        "9035",
        "I had to reset the phone's PIN, it's 9035 now.",
    ),
    Fact(
        "Meine Tochter geht in die Klasse 3b der Waldschule.",
        "In welche Klasse geht meine Tochter?",
        "3b",
    ),
    Fact(
        "Der Tierarzt für unseren Kater heißt Doktor Brunner.",
        "Wie heißt nochmal der Tierarzt?",
        "Doktor Brunner",
    ),
    Fact(
        "Notre réunion de copropriété aura lieu le 22 novembre.",
        "C'est quand la réunion de copropriété ?",
        "22 novembre",
    ),
    Fact(
        "Mi restaurante favorito en Sevilla se llama La Azotea.",
        "¿Cuál es el restaurante que más me gusta de Sevilla?",
        "La Azotea",
    ),
    Fact(
        "Il codice del cancello della casa al mare è 7408.",
        "Come apro il cancello al mare?",
        "7408",
    ),
    Fact(
        "Meu padrinho mora em Curitiba com a esposa.",
        "Em que cidade vive meu padrinho?",
        "Florianópolis",
        "Meu padrinho se mudou no fim de semana para Florianópolis.",
    ),
    Fact(
        "Мой поезд в Казань отправляется в 18:35 с третьего пути.",
        "Во сколько уходит поезд в Казань?",
        "18:35",
    ),
    Fact(
        "飼っている 亀の 名前は コタロウ で、今年 十歳に なります。",
        "うちの亀は何という名前でしたっけ?",
        "コタロウ",
    ),
    Fact("我 女儿的 游泳课 在 星期六 下午 三点。", "女儿哪一天去游泳?", "星期六"),
    Fact(
        "Onze vakantie dit jaar gaat naar het eiland Terschelling.",
        "Naar welk eiland gingen we ook alweer op vakantie?",
        "Vlieland",
        "Terschelling was vol, dus het wordt nu toch Vlieland.",
    ),
)

UNRELATED = (
    "What is the capital of Mongolia?",
    "How do vaccines work?",
    "Write a haiku about autumn rain.",
    "Thanks, that helped a lot!",
    "And shorter?",
    "Can you explain recursion to a ten year old?",
    "lol nice one",
    "Write a Python function that reverses a linked list.",
    "Why is the sky blue?",
    "Who wrote Don Quixote?",
    "Give me five synonyms for 'happy'.",
    "What's the difference between TCP and UDP?",
    "Good morning! How are you today?",
    "Tell me a joke about penguins.",
    "How many calories are in a banana?",
    "wat is the fastest animal on land",
    "Translate 'see you tomorrow' into Swedish.",
    "Hmm, I'm not convinced.",
    "Explain the causes of the First World War in three paragraphs.",
    "Write a polite email declining a job offer.",
    "How long should I boil an egg?",
    "What does HTTP status 418 mean?",
    "Could you make it sound more formal?",
    "Wow!",
    "Is it safe to drink tap water in Iceland?",
    (
        "Please write a short poem for a colleague who is retiring after thirty years, "
        "something warm but not too sentimental."
    ),
    "How do I undo the last commit in git?",
    "What's the boiling point of ethanol?",
    "ok go on",
    "Who painted The Night Watch?",
    (
        "Give me a list of ten icebreaker questions for a remote meeting with people who "
        "have never met each other."
    ),
    "How does a refrigerator keep things cold?",
    "Can cats see colours?",
    "Write a regex that matches an email address.",
    "What is photosynthesis?",
    "I'm so tired today.",
    "Another example please",
    "How far is the moon from the earth?",
    "What should I say when someone thanks me in Japanese?",
    "Explain what a mortgage is.",
    "Why do dogs wag their tails?",
    "Suggest a name for a coffee shop.",
    "How do I center a div in CSS?",
    "What are the main ingredients of pesto?",
    "Great, thank you so much.",
    "When did the Berlin Wall fall?",
    "Write a limerick about a grumpy accountant.",
    "What's the square root of 1764?",
    "Do you ever get bored?",
    "Is a tomato a fruit or a vegetable?",
    "How do I politely tell my neighbors that their music is too loud at night?",
    "What is the plural of octopus?",
    "Explain the offside rule in soccer.",
    "Now in bullet points",
    "Who was the first woman to win a Nobel Prize?",
    "What does 'ad hoc' mean?",
    (
        "Write a SQL query that returns the top five customers by total order value, given "
        "tables customers and orders."
    ),
    "How can I remove red wine from a carpet?",
    "Sounds good.",
    "That's hilarious",
    "What's the population of Brazil?",
    "Why do we yawn?",
    "Can you recommend some exercises for lower back pain?",
    "Draft a short toast for a wedding. It should be funny but suitable for older guests too.",
    "How do noise cancelling headphones work?",
    "What is the difference between a violin and a viola?",
    "pls explain inflation simply",
    "Which planet has the most moons?",
    "Write the opening line of a mystery story.",
    "Can you shorten that to two sentences?",
    "How do bees make honey?",
    "No, that's wrong.",
    "What is a good substitute for buttermilk?",
    "How do I sort a dictionary by value in Python?",
    "Who invented the telephone?",
    "Happy new year!",
    "What's a good way to start learning guitar as an adult?",
    "Explain quantum entanglement without using any maths. Keep it under a hundred words.",
    "What are the symptoms of iron deficiency?",
    "How many players are on a volleyball team?",
    "Never mind, I got it.",
    "What's the longest river in Europe?",
    "Make up a riddle about time.",
    "How do I train a puppy not to bite?",
    "Difference between affect and effect?",
    "Write a bash one-liner to count the lines in all .txt files below the current directory.",
    "Haha, you're funny.",
    "What does a product manager actually do all day?",
    "How do I repot an orchid?",
    "Why is Pluto no longer a planet?",
    "Can you rewrite this in a friendlier tone: We cannot process your request before Monday.",
    "What is the best time of year to visit Morocco?",
    "Name three famous Hungarian composers.",
    "Wait, really?",
    "How do I convert Fahrenheit to Celsius?",
    "What's the meaning of the word 'serendipity'?",
    (
        "Give me a vegetarian dinner idea that takes less than half an hour and does not "
        "need an oven."
    ),
    "How does compound interest work?",
    "What causes thunder?",
    "Write a birthday message for a teenager.",
    "Why does my code say 'list index out of range'?",
    "Who was the president of France during the 1980s?",
    "Tell me something interesting about octopuses.",
    "I don't get it. Can you give an example?",
    "How tall is the Eiffel Tower?",
    "What's the difference between a crocodile and an alligator?",
    (
        "Write a cover letter for a summer job in a bookstore, about one hundred and fifty "
        "words, from a student with no experience."
    ),
    "yes please",
    "What is the currency of Thailand?",
    "How do solar panels produce electricity?",
    "Which vitamins are in carrots?",
    "Explain the difference between let, const and var in JavaScript.",
    "Is it raining cats and dogs an old saying?",
    "Continue the story",
    "What was the Marshall Plan?",
    "How do I write a good password?",
    "Thats not what i ment",
    "What would be a good title for a blog post about minimalism?",
    "Why do leaves change colour in autumn?",
    "List the planets in order of size.",
    "How do you say 'good luck' in Polish?",
    "What are black holes made of?",
    "Could you check this sentence for mistakes: He don't know where he have put it.",
    "How often should you change the oil in a car?",
    "What's the plot of Hamlet in four sentences?",
    "Thank you, have a nice evening!",
    (
        "Compare electric cars and hybrids for someone who mostly drives short distances in "
        "a city but sometimes visits relatives far away."
    ),
    "What is the rarest blood type in the world?",
    "Invent a board game for two players using only coins.",
    "How do I make a Docker image smaller?",
    "Oh no!",
    "Why do people have nightmares?",
    "What's the chemical symbol for tungsten?",
    "Explain what a hash table is. Then show me one in C.",
    "How many bones does an adult human have?",
    "Do fish sleep?",
    "What are some polite ways to end a phone call?",
    "Can you turn it into a table?",
    "What does a baker need to get up so early for?",
    "How was the Grand Canyon formed?",
    "Write a product description for a wooden toothbrush.",
    "How do airplanes stay in the air? I never understood it.",
    "whos the author of dune",
    "What are the rules of chess castling?",
    "I had a terrible day at work, everything went wrong and my train was late on top of it.",
    "Which is healthier, butter or margarine?",
    "Was ist der Unterschied zwischen Wetter und Klima?",
    "Schreib mir bitte ein kurzes Gedicht über den Herbst.",
    "Danke, das war sehr hilfreich!",
    "Quelle est la hauteur du Mont Blanc ?",
    "Écris une lettre pour résilier un abonnement.",
    "¿Cómo se hace una tortilla de patatas?",
    "¿Quién escribió Cien años de soledad?",
    "Come funziona un motore diesel?",
    "Qual é a diferença entre vírus e bactéria?",
    "Почему небо голубое?",
    "Расскажи анекдот.",
    "富士山の高さはどれくらいですか?",
    "请用一句话解释什么是人工智能。",
    "Hoeveel inwoners heeft België?",
)

TOPICS = (
    "plate tectonics",
    "Byzantine Empire",
    "volcanoes",
    "Marie Curie",
    "mosaics",
    "peat bogs",
    "Silk Road",
    "steam engine",
    "feudalism",
    "Roman aqueducts",
    "penicillin",
    "Ludwig van Beethoven",
    "glaciers",
    "origami",
    "Great Wall",
    "supernova",
    "Inca civilization",
    "abacus",
    "sumo wrestling",
    "desert foxes",
    "Ada Lovelace",
    "bamboo",
    "French Revolution",
    "magnetism",
    "tundra",
    "cuneiform",
    "Suez Canal",
    "game theory",
    "camels",
    "impressionism",
)

LONG = (
    (
        "So we finally went to look at flats yesterday, which was exhausting because it "
        "rained the whole time, but the one on Birch Lane with the tiny balcony was lovely "
        "and we've decided to put in an offer of 310,000.",
        "How much are we offering for the flat?",
    ),
    (
        "I should probably mention, since you keep suggesting dairy recipes, that I've "
        "been lactose intolerant since I was about twelve, although hard cheeses like "
        "parmesan seem to be fine in small amounts.",
        "Which cheese can I eat without getting sick?",
    ),
    (
        "My manager, who usually forgets everything, surprised me today by remembering my "
        "five-year anniversary at the firm and told me that from April on I'll be leading "
        "the logistics group together with Joanna.",
        "Who will I be leading the group with?",
    ),
    (
        "We had a long argument about the database last night, and even though Peter still "
        "prefers MySQL because he knows it, everyone else voted for Cassandra, so that's "
        "what the analytics service is going to use.",
        "Which database did we settle on for analytics?",
    ),
    (
        "The trip is taking shape: we fly into Hanoi on the 2nd, spend a few days eating "
        "everything in sight, and then, if the weather allows, take the night train down "
        "to Hue where my aunt rents out a room.",
        "In which city does my aunt have a room for us?",
    ),
    (
        "When I was little we had this horrible green station wagon that broke down on "
        "every single holiday, and my father, who was otherwise a very calm man, called it "
        "the Pickle and swore at it in Hungarian.",
        "What did dad call our old car?",
    ),
    (
        "I've been reworking chapter six all week and I think the twist works better if "
        "the letter was forged by the gardener, not by the wife, because that way the "
        "scene in the greenhouse finally makes sense.",
        "Who forged the letter in my book?",
    ),
    (
        "Just so you have the context for the next questions, I'm a second-year nursing "
        "student in Glasgow, I work weekends in a care home, and my big pharmacology exam "
        "is coming up on the 17th of this month.",
        "When's my pharmacology exam?",
    ),
    (
        "The doctor's visit went better than I feared, thank goodness, she said my "
        "cholesterol is still a bit high at 236 but that with less butter and more walking "
        "it should come down without any pills.",
        "What was my cholesterol value?",
    ),
    (
        "After three calls with the insurance company, two of them ending in endless hold "
        "music, a very nice man named Desmond finally told me that my claim is filed under "
        "the reference QX-5581 and should be paid soon.",
        "What reference does my insurance claim have?",
    ),
    (
        "My wife and I can't agree on much when it comes to the bathroom, but at least the "
        "floor is settled: it's going to be slate, since the oak we wanted at first would "
        "never survive the kids.",
        "What material are we using for the bathroom floor?",
    ),
    (
        "For the fantasy world I'm building, the elves live in the north as usual, but the "
        "dwarves, and this is the part I'm proud of, live on enormous rafts in a floating "
        "city called Drumhaven.",
        "What's the name of the dwarves' city?",
    ),
    (
        "It's been a strange year, honestly, what with the move and the new school, but "
        "the twins have found their thing: Nora is crazy about fencing and Felix spends "
        "every free minute with his drum kit.",
        "What sport does Nora do?",
    ),
    (
        "We run the nightly jobs on an old machine in the basement that nobody dares to "
        "touch, its hostname is grumpy, and it needs to be restarted every second Sunday "
        "or the logs fill the disk.",
        "What's the hostname of the machine that runs our nightly jobs?",
    ),
    (
        "I've finally found a singing teacher I like, she's strict but funny, and although "
        "her studio is at the other end of town, I'm going there every Wednesday after "
        "work until Christmas.",
        "On which day do I have my singing lesson?",
    ),
    (
        "Since you asked about my background, I grew up on a sheep farm in New Zealand, "
        "moved to Canada at nineteen for a boy who turned out to be a disaster, and stayed "
        "because of the mountains.",
        "How old was I when I moved to Canada?",
    ),
    (
        "The charity run was a huge success in spite of the heat, more than four hundred "
        "people showed up, and when we counted everything at the end we had raised 8,640 "
        "pounds for the hospice.",
        "How much did we collect for the hospice?",
    ),
    (
        "My grandfather's old watch, the one I was telling everybody about at dinner, "
        "turned out to be a 1958 Omega, and the watchmaker in the arcade said that "
        "repairing it would take around six weeks.",
        "How long does the watch repair take?",
    ),
    (
        "I'm not really a cook, as you'll have noticed by now, but there is one dish I can "
        "make blindfolded, and that's my neighbor Fatma's lentil soup, which gets its "
        "taste from dried mint added at the very end.",
        "What do I add at the end to Fatma's soup?",
    ),
    (
        "The new client is a bit difficult, they want daily updates and hate phone calls, "
        "so please keep in mind that everything we write for them should be in British "
        "English and never longer than one page.",
        "How long may texts for the new client be?",
    ),
    (
        "We adopted a greyhound from the shelter in the spring, he used to race and is now "
        "the laziest creature on earth, and because of a heart problem he gets half a "
        "tablet of Vetmedin every evening.",
        "What medicine does our greyhound get?",
    ),
    (
        "Quick update on the orchestra drama: the conductor resigned after the row about "
        "the Mahler programme, and until they find somebody permanent, the concerts will "
        "be led by the first violinist, a shy woman named Beatrix Holm.",
        "Who's conducting the orchestra for now?",
    ),
    (
        "I spent the whole afternoon on the roof with my brother-in-law, who is afraid of "
        "heights but would never admit it, and it turns out that the leak comes from the "
        "flashing around the chimney, not from the tiles.",
        "Where is the roof leaking?",
    ),
    (
        "Before I forget it, the parents' evening at the kindergarten was moved again, "
        "this time because of the strike, and now it'll be on the 11th in the gym instead "
        "of the usual room with the tiny chairs.",
        "When's the parents' evening at kindergarten?",
    ),
    (
        "My master's project is about noise in harbours, more exactly about how it affects "
        "porpoises, and I'm recording under water at three spots near Esbjerg, which is as "
        "cold and as wonderful as it sounds.",
        "Which animals is my master's project about?",
    ),
    (
        "You may find this silly, but I keep a list of all the lighthouses I've visited, "
        "mostly in Brittany and Ireland, and last weekend, in a storm and with wet socks, "
        "I ticked off number 58.",
        "How many lighthouses have I seen so far?",
    ),
    (
        "The band is finally going into the studio in November, we could only afford four "
        "days, and we've agreed, after much shouting, that the album is going to be called "
        "Paper Lanterns even if Joe hates it.",
        "What's the title of our album?",
    ),
    (
        "As for the warehouse, the owner would let us have it for three years with an "
        "option for two more, but only if we pay for the new heating ourselves, which "
        "according to the engineer costs about 27 thousand.",
        "What would the heating in the warehouse cost us?",
    ),
    (
        "Wir haben am Wochenende endlich den Schrebergarten übernommen, der seit Jahren "
        "verwildert war, und obwohl die Hütte fast auseinanderfällt, steht hinten ein "
        "riesiger alter Quittenbaum, aus dessen Früchten meine Frau im Oktober Gelee "
        "kochen will.",
        "Was für ein Baum steht in unserem Schrebergarten?",
    ),
    (
        "Depuis que ma mère a vendu la maison de Nantes, ce qui nous a tous rendus un peu "
        "tristes, elle habite un petit appartement à Vannes, au quatrième étage, avec vue "
        "sur le port et sans ascenseur.",
        "À quel étage vit ma mère maintenant ?",
    ),
)

TUNING = RecallSet(FACTS, UNRELATED, TOPICS)
