"""Facts as people state them, in long sentences, and what they ask later. Only reported."""

LONG = (
    (
        "Finally got in to see the neurologist about the headaches, and she's put me on "
        "topiramate, to be taken at night because it makes people drowsy.",
        "What did the neurologist prescribe for my headaches?",
    ),
    (
        "After endless back and forth with the kids, who'd set their hearts on the "
        "seaside, we've decided that this summer we're renting a narrowboat on the Kennet "
        "and Avon for ten days. None of us has ever steered one, so wish us luck.",
        "What sort of holiday did we settle on for this summer?",
    ),
    (
        "The man we bought from built the greenhouse himself out of old sash windows, so "
        "every pane is a different size, and when the hail smashed two of them last week I "
        "had to have new ones cut specially by a glazier over in Ludlow.",
        "Where did I get the replacement panes for the greenhouse made?",
    ),
    (
        "In chapter three, which I rewrote on the way home, Ilse doesn't burn the letters "
        "after all; she sews them into the lining of her father's coat, and nobody finds "
        "out until the auction, when a button comes off in somebody's hand.",
        "Where does Ilse hide the letters in my chapter?",
    ),
    (
        "For the record, because I'm bound to forget: the nightly backups don't go to the "
        "old NAS any more, it kept filling up. They're pushed to a storage box in Helsinki "
        "at half past two, and we only hang on to the last fourteen.",
        "How many of the nightly backups do we keep?",
    ),
    (
        "My colleague Dagmar, the one with the parrot, goes on parental leave in the "
        "middle of April, and until she's back I'm meant to look after her accounts too, "
        "which basically means I'll be doing Austria and Switzerland for a whole year.",
        "Which countries am I covering while Dagmar is on leave?",
    ),
    (
        "We gave in and adopted a cat from the shelter, a ginger thing with one eye; no "
        "papers, but going by her teeth the vet reckons she's about seven.",
        "How old is our cat supposed to be?",
    ),
    (
        "I took the piano up again during lockdown, and my teacher, a very patient "
        "Ukrainian woman who lives above the launderette, has me playing Schumann at the "
        "moment, though if I'm honest I'd much rather be learning some jazz.",
        "Which composer has my piano teacher got me on?",
    ),
    (
        "We had three quotes for insulating the loft, and although the firm from Stroud "
        "was the cheapest by a mile, we've gone with the middle one in the end, because "
        "they use sheep's wool and my husband can't stand that yellow itchy stuff.",
        "What material are they going to insulate our loft with?",
    ),
    (
        "The board game I'm designing is cooperative, for two to five people: everybody "
        "keeps a lighthouse going through one long winter, ships turn up at random, and "
        "the whole table loses the moment the oil runs out, even if every ship so far got "
        "home.",
        "How do the players lose in the board game I'm making?",
    ),
    (
        "So the second round at the aquarium went well, apart from me spilling tea on the "
        "director, who was very nice about it, and they rang this afternoon to offer me "
        "the job! The probation is six months, which is longer than I'd hoped for, but the "
        "pay's decent and I get to feed the rays.",
        "How long will I be on probation at the aquarium?",
    ),
    (
        "Since the separation, and it took us a mediator to get there, the arrangement is "
        "that the boys are with me from Wednesday evening until Saturday lunchtime, and "
        "with their dad for the rest of the week, except when he's on tour.",
        "On which days do I have the boys?",
    ),
    (
        "I got the soil on the allotment tested, mostly out of curiosity, and it turns out "
        "to be heavy clay with a pH of 7.8, which explains why the blueberries the "
        "previous people put in look so miserable every single year.",
        "How alkaline was the soil on my allotment, what pH?",
    ),
    (
        "My great-aunt Wanda made the best pierogi in the whole of Chicago, and she'd only "
        "tell you the secret after two glasses of cherry vodka: there's no egg in the "
        "dough at all, just warm sour cream and a lot of patience.",
        "What did Wanda put in her pierogi dough in place of egg?",
    ),
    (
        "Our customers are mostly small vineyards, and they've been moaning that they "
        "can't get their figures out of the app, so at planning we agreed to do the CSV "
        "export first and leave Excel for the autumn release, whatever sales may have told "
        "you.",
        "Which export format did we agree to build first?",
    ),
    (
        "I tore the meniscus in my left knee playing five-a-side, stupidly, and the "
        "surgeon was very firm that there's to be no running before August at the earliest.",
        "When does the surgeon say I can go running again?",
    ),
    (
        "I've kept the same sourdough starter alive since my year in Tbilisi, which is "
        "getting on for eleven years now, and it's fussy: it gets nothing but wholemeal "
        "rye, since every time I've tried it on white flour it has sulked for days.",
        "What kind of flour do I feed my sourdough starter?",
    ),
    (
        "The motorbike is a Honda from 1978 that I bought off a farmer as three boxes of "
        "bits, much to my wife's delight, as you can imagine. The engine runs now, the "
        "tank's been resprayed, and the only thing I still can't find for love or money is "
        "the left-hand side panel.",
        "Which part am I still missing for the motorbike?",
    ),
    (
        "Sundays are difficult for me, by the way, since I volunteer for the hospice: I "
        "drive the minibus that brings the relatives in from the villages, and by the time "
        "I've dropped the last of them off it's usually gone eight.",
        "What exactly do I do for the hospice as a volunteer?",
    ),
    (
        "The insurers have written at last about the flooded cellar, and it's a mixed bag: "
        "they will pay for the freezer and the shelving, but not a penny for the wine, "
        "because I couldn't produce any receipts for it. Who keeps receipts for wine, I "
        "ask you, some of it was a present from people who've been dead for years?",
        "Why won't the insurance cover the wine from the cellar?",
    ),
    (
        "Officially I'm Bartholomew, but ever since a teacher couldn't be bothered with "
        "the whole of it everyone has called me Tolly, so please do that as well.",
        "What nickname does everybody call me by?",
    ),
    (
        "I'm best man for my cousin Rhys, God help me, and I've been given precisely one "
        "instruction by the bride, which is that the stag weekend in Riga must not come up "
        "in my speech in any form, not even as a hint.",
        "What must I leave out of the best man speech for Rhys?",
    ),
    (
        "Just so you know what you're looking at: the sensors at the reservoir report "
        "every ten minutes, the depth is in metres, and anything that changes by less than "
        "0.3 between two readings you can ignore, as that's only the pump shaking the mast.",
        "Below what change are the reservoir readings just noise?",
    ),
    (
        "From the end of the month we'll be hosting an exchange student, a girl of sixteen "
        "from Montevideo called Lucía, who doesn't eat meat, is scared of geese and "
        "apparently plays the drums. The attic's too hot, so she'll be sleeping in my "
        "study, which means I'll be doing my own work at the kitchen table until Easter.",
        "Which room is the exchange student going to have in our house?",
    ),
)
