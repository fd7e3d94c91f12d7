"""Prose as users paste it, to plant the reported facts in. Never tune anything on it."""

PROSE = """\
Subject: Move to the second building. Dear all, as most of you will have heard by now, we are
leaving the old warehouse at the end of the quarter and moving into the brick building across
the canal. The removal firm will deliver flat crates next week, two per person, and I would ask
everyone to pack their own desk rather than leave it to the last afternoon. Please label each
crate on the short side with your surname and the number of your new desk, which you can find on
the plan pinned up in the kitchen. Monitors will be wrapped by the movers, so simply unplug them
and tie the cables together. Plants travel at their owners' risk. Anything left in the cupboards
by the printer after the deadline will be thrown away, and I mean that kindly but firmly, since
we found a birthday cake in there last spring that nobody could date. There will be no lift on
the first day, because the inspector cannot come any earlier. If carrying things upstairs is a
problem for you, tell Rowena or me quietly and we will arrange help. Thank you for your
patience, and yes, there will be biscuits. Kind regards, Alistair Penhallow

The iron footbridge over the Tarn at Millsend has been closed until further notice after
engineers found cracks in two of its supporting cables. The bridge, which was opened in the
reign of Edward VII and is used by some eight hundred pedestrians a day, was inspected on Monday
as part of a routine survey. A spokeswoman for the county said there was no immediate danger of
collapse, but that the authority was not prepared to take the risk. Schoolchildren from the
estate on the northern bank now face a detour of almost two miles along a road without a
pavement. Parents have called for a temporary ferry, an idea that the council described as
interesting but expensive. A local boatman, Mr Joss Tetley, has meanwhile offered to row pupils
across in the mornings free of charge, although he admitted that he would first have to find
enough life jackets. The repairs are expected to cost more than a million pounds, and half of
that would have to come from the national heritage fund. A decision is not likely before the
winter. Traders in the old town said that their takings had already fallen by a third since the
barriers went up.

Leek and barley soup, enough for six people. Rinse a mug of pearl barley under the tap until the
water runs clear and leave it to soak while you prepare the rest. Slice four fat leeks, wash
them well, because there is always grit hiding between the layers, and let them soften in a
generous piece of butter over a low heat with a pinch of salt and the lid on. This takes a good
quarter of an hour and should not be hurried; they must turn silky without taking on any colour.
Add two diced carrots, a stick of celery, a bay leaf and the drained barley, stir everything
about until it shines, then pour on a litre and a half of chicken or vegetable stock. Simmer for
forty minutes. The barley will swell and thicken the soup, so have a kettle ready in case it
needs letting down. Just before serving, stir in a handful of chopped parsley and the grated
rind of half a lemon, and taste for pepper. My aunt used to put a spoonful of mustard into each
bowl, which sounds odd but is very good on a cold evening. Like most soups it is better on the
following day.

Minutes of the village hall committee, held in the small room owing to the badminton. Present:
Mrs Loxley in the chair, Mr Adeyemi, Ms Trent, Mr Fairbrother, and the treasurer, who left
early. Apologies were received from the vicar. The minutes of the previous meeting were approved
after the word "disgraceful" had been replaced by "unfortunate". Mr Adeyemi reported that the
new curtains had arrived but were eleven inches too short, and that the supplier was disputing
the measurements. It was agreed to let them down with a contrasting border. Ms Trent presented
two offers for repainting the stage. The committee preferred the cheaper one, provided that the
painter could show proof of insurance. The treasurer stated that the account stood at a little
over four thousand pounds, and asked members to stop paying for bulbs out of their own pockets
without handing in a slip. The harvest supper was discussed at length. It was decided to have a
ceilidh band rather than a disco, by three votes to one. Mr Fairbrother offered to see to the
bar licence. Under any other business, the chair read out a complaint about chairs being stacked
too high. The next meeting will take place after half term.

The StepMate folding ladder brings everything within reach and disappears when you are done.
Made of aircraft-grade aluminium, it weighs less than a full watering can, yet carries up to a
hundred and fifty kilos without flexing. The wide treads have a ribbed rubber surface that grips
even in wet socks, and the arched handrail at the top doubles as a hook for your paint pot. A
single squeeze of the red lever locks the legs in place with an audible click; another squeeze,
and the whole thing folds flat to the thickness of a hand, so that it slides behind a wardrobe
or under a bed. The feet are made of soft, non-marking silicone and swivel to find their own
level on uneven stone floors. We test every hinge ten thousand times before it leaves our
factory in the Black Forest. Available with two, three or four treads, in silver, graphite and a
cheerful yellow. It comes fully assembled, and the cardboard it is packed in contains no plastic
whatsoever. Should anything ever break, we send you the part and a short film showing how to fit
it. Guaranteed for ten years, and not for professional use on scaffolding.

It snowed in the night, properly, for the first time since we came to live up here. I woke
because of the silence. No milk lorry, no rooks, not even the pipes. When I opened the shutters
the lane had vanished and the hedges looked like long loaves under a cloth. I put on Papa's old
boots and walked as far as the ford, just to be the first, and felt like a child stealing icing.
The stream was still running, black as treacle, with a lace collar on either side. On the way
back I met Mrs Anstruther with a shovel over her shoulder, marching to dig out the post van,
which had come off the road by the chapel. We got it out between the three of us with two
doormats and a good deal of swearing. The postman gave us each a toffee. All afternoon I meant
to work on the accounts, and instead I sat by the stove, watched the light turn blue and read an
entire detective story, including the silly ending. The power failed at six. I write this by a
candle stuck into a jam jar, with a hot brick in my lap, and I am perfectly happy.

Salt marshes form along sheltered coasts where mud and silt are dropped by the slowing tide. At
first only a few tough plants, such as glasswort and cord grass, can stand being covered by the
sea twice a day. Their stems slow the water further, more mud settles, and little by little the
surface rises until it is flooded only by the highest tides. The result is a flat green
landscape cut by winding creeks, which fill and empty like the veins of a leaf. Few species can
live there, but those that can are often present in enormous numbers: snails, shrimps, worms,
and the wading birds which feed on them. For centuries people regarded such places as wasteland,
good for sheep at best, and drained them behind sea walls to win fields. Today they are valued
for quite different reasons. They soak up the force of storm waves, filter the water that flows
off the land, and lock away carbon in their mud many times faster than a forest of the same
area. In several countries old dykes are therefore being deliberately breached so that the tide
may return, a practice known as managed realignment, which is not always welcomed by farmers.

Sarajevo, second day. I climbed up to the Yellow Fortress before breakfast, because everybody
says you should go at sunset and I cannot bear crowds. Only an old man with a thermos was there,
feeding crumbs to the pigeons and humming. From the wall you see the whole town lying in its
trough, minarets and church towers side by side, and the white graveyards like spilled sugar on
the slopes. Down in the bazaar the coppersmiths were just opening their shutters. I bought a
tiny pot with a long handle, knowing full well that it will stand on a shelf for the rest of its
life. Lunch was ten small sausages in a flat bread with raw onion, eaten standing. Afterwards I
took the tram, one of the oldest lines in Europe, all the way out to the park at Ilidža and
walked along the avenue of plane trees to the springs, where families were picnicking and horses
pulled carriages up and down for no particular reason. A student who wanted to practise her
English told me about her grandmother, who had carried water across the bridge during the siege.
She told it quite lightly. I did not know what to say and paid for the ice creams.

The clock mender had three rules: never hurry, never guess, and never accept a clock from a
customer who says that it only needs a drop of oil. On the morning that changed everything he
broke all of them. The woman put the thing on the counter wrapped in a tea towel. It only needs
a drop of oil, she said, I should be so grateful if I could have it back by noon. He unwrapped
it. It was no bigger than an orange, made of a greyish metal that he did not recognise, and the
dial had thirteen hours. He ought to have asked where she had got it. Instead he looked at her
gloves, which were soaked through although it had not rained in Pell for a month, and heard
himself say: certainly, madam. When she had gone he guessed at the screw, turned it to the left,
hurried, and the back came off with a small sigh. There were no wheels inside. There was a room,
with a lamp burning on a table, and at the table a man was bent over something the size of an
orange. The man looked up, slowly, and so, very slowly, did the mender, towards the ceiling.

There is an art to standing in a queue, and like most arts it is only noticed when it is
missing. A good queue is a small republic. Nobody is elected, nothing is written down, and yet
everyone knows the law, which is that time is the one currency that cannot be counterfeited. You
pay with ten minutes and you get your stamps. The person who pushes in is resented not for the
delay, which is trifling, but because he has printed his own money. I have stood in lines all
over the world and have come to think that you can read a society from them. In some places
people keep a distance of an arm's length and look at the floor; in others they press together
as though warmth would make the counter come nearer. In one town, which I shall not name, there
is no visible line at all: you enter, ask who is last, and remember that face, and then all sit
about chatting wherever they please. It is the most civilised arrangement I know, because it
rests on nothing but memory and trust. We are now being given machines with numbered tickets.
They are efficient. They also mean that we need never ask a stranger anything.

How to sharpen a kitchen knife on a stone. Soak the stone in a bowl of water until no more
bubbles rise from it, which takes about a quarter of an hour, and set it on a damp cloth so that
it cannot slide. Begin with the coarse side. Hold the blade at an angle of roughly fifteen
degrees, which is what you get if you can just push a matchbox under its back. Place the
fingertips of your free hand flat near the edge, press lightly, and push the knife away from you
as though you wanted to shave a thin slice off the stone. Release the pressure on the way back.
Work from the heel to the tip in overlapping strokes and keep the surface wet; the grey mud that
appears is doing the work, so do not rinse it away. After twenty strokes you should feel a fine
burr along the other side. That is the sign to turn the knife over. Repeat until the burr moves
across, then change to the fine side and use less and less pressure. Finish by drawing the edge
over a piece of newspaper or an old leather belt. A sharp knife will fall through a ripe peach
under its own weight.

We had been looking forward to the Copper Ladle for weeks, since everyone in the office raved
about it, and I am sorry to say that we left puzzled. The room is lovely: low beams, proper
linen, a fire that somebody actually tends. Our waiter knew the menu by heart and recommended
the trout, which came with burnt butter and little cubes of beetroot and was as good as anything
I have had this year. My wife's lamb, on the other hand, arrived almost cold, went back, and
returned ten minutes later grey all the way through. Nobody made a fuss, and they took it off
the bill, which was decent. The puddings restored the mood. The rhubarb fool has a layer of
ginger crumbs at the bottom that you only discover when you have given up hope of anything
crunchy. What spoiled the evening was the noise. The tables are so close that we know everything
about the divorce of the couple next to us and they, I suppose, about our kitchen extension. Go
on a weekday, ask for the alcove, order fish. Three stars out of five, and I would give it
another chance, because somebody in that kitchen can clearly cook.

Title: All-day events jump to the previous day after a change of time zone. Version 4.2.1 on
Android 13, also seen by a colleague on 4.2.0. Steps to reproduce: create an all-day event for
tomorrow, set the phone to any zone west of the current one, open the week view and pull down to
refresh. Expected: the event stays where it is, because an all-day event has no clock time. What
happens instead: the event is drawn a day earlier and a reminder goes off immediately. If I
switch back, it returns to the right place, so the stored data seem to be fine and only the
display is wrong. It does not happen in the month view. I had a look at the exported file, and
the event is written with a start at midnight UTC rather than as a plain date, which I suspect
is the cause. Clearing the cache makes no difference, neither does signing out. This bit me
rather badly last week, when I turned up at a christening in Toronto on the wrong day with a
very large stuffed giraffe. Happy to test a build or to send logs; please tell me which ones you
need and how to remove the names of other people from them.

Dear Sir or Madam, I am writing for the third time about the hole in the road outside number
sixty, Larch Avenue. When I first reported it in the autumn it was the size of a dinner plate. I
then received a card with a reference and the promise that an officer would call. Nobody called.
By the new year it had become a respectable pond, in which I saw a blackbird bathing, and last
night it swallowed the front wheel of a delivery rider, who went over the handlebars and was
lucky to get away with a grazed chin. I enclose photographs, with my walking stick laid beside
the hole to give an idea of the scale. I am eighty-one years old and paid for roads for longer
than most of your staff have been alive. I do not expect the avenue to be resurfaced. I should
be content with a bucket of tar and a man with a shovel. If that is not possible, kindly let me
know, because my neighbour has some cement left over from his patio and we are both perfectly
willing to do it ourselves, and to put up a small plaque afterwards with the name of your
department on it. Yours faithfully, Winifred Askew (Mrs)

Lecture seven, the tragedy of the commons and its critics. Start with Hardin's picture: a
pasture open to all, each herdsman adds one more animal because the gain is his alone while the
damage is shared. Note that he took it for granted that the users never talk to each other. Then
Ostrom: field studies of irrigation in Spain, alpine meadows in the Tyrol, fisheries in Turkey
and Maine. Many of these have been running for centuries without either a state or private
owners. What do they have in common? Clear boundaries, so that everyone knows who belongs. Rules
that fit the local conditions. The people concerned take part in changing those rules.
Monitoring by members themselves, cheap and visible. Penalties that begin small and grow. A
quick and inexpensive way of settling quarrels. Emphasise that these are regularities, not
recipes. Counter-examples: the cod off Newfoundland, where outsiders could not be kept out and
the science was ignored. Question for the seminar: is the atmosphere a commons in her sense at
all, given that the number of users is in the billions and that monitoring is costly? Reading
for next time: chapter three, and the short reply by Agrawal. Remember to hand back the essays.

Repotting an orchid is less frightening than it looks. Wait until the flowers have dropped and
you can see new roots or a fresh leaf starting, since the plant then has the strength to
recover. You will need a clear plastic pot one size larger, coarse bark, and a pair of scissors
that you have wiped with alcohol. Never use ordinary soil; in the wild these plants cling to
trees, and their roots would suffocate. Squeeze the old pot all round, tip the plant out and
shake off the tired bark. Now look at the roots. Those that are firm and silvery or green are
healthy, those that are brown and hollow should be cut off without mercy. Do not worry if only
half of them are left. Set the plant in the middle of the new pot so that the lowest leaves sit
just above the rim, and trickle bark in between the roots, tapping the pot on the table to
settle it. Do not push. Wait a week before watering, so that the cuts can dry, and keep it out
of direct sun. After that a good soak every ten days will do. A pot with holes, standing in a
prettier one without, makes this easy.

Dear Dr Lindqvist, I should like to apply for the post of assistant curator in the textile
department, which was advertised on your website. For the last six years I have looked after the
costume store of a small regional theatre, where I catalogued some three thousand garments that
until then had been known only by the names of the actors who had worn them. That meant learning
to date a bodice by its seams, to tell silk from early rayon with the naked eye, and to explain
to directors why a dress from the eighteen-seventies cannot be danced in. I hold a degree in art
history and took an evening course in conservation, and I am used to handling fragile things
with clean hands and a steady temper. What attracts me to your museum is the plan to open the
reserve collection to visitors. I believe that people are moved by the ordinary, by a darned
elbow or a let-down hem, far more than by another coronation robe. I speak Swedish and passable
Polish, drive a van without fear, and can start after the summer season. I should be very glad
to show you my catalogue in person. Yours sincerely, Imogen Castellane

A team of thirteen-year-olds from Harrow Lane School has beaten competitors from all over the
county to win this year's young cooks' prize. The four pupils convinced the jury with a menu
that cost less than two pounds a head: a salad of shaved fennel and orange, lentil dumplings in
tomato broth, and a baked apple filled with oats and blackberries which they had picked
themselves on the railway embankment. "We burnt the first lot of dumplings completely," said
Kofi Bassett, who led the team, "and that turned out to be useful, because we found out what
happens if you do not stir." The head of the jury, the television chef Mona Delacroix, praised
the calm with which the four had worked. At one point the power in the hall failed for several
minutes, and while adults ran about looking for the fuse box, the pupils simply moved on to
chopping. The prize consists of a weekend course at a cookery college and a set of copper pans
for the school, whose own kitchen has had only two working hotplates since last year. The
headteacher said that she was delighted and would now be having a word with the governors about
the stove.

The pencil as we know it owes its existence to a storm. According to tradition, a great tree was
blown down in Borrowdale in the Lake District in the sixteenth century, and beneath its roots
shepherds found a black, greasy mineral with which they began to mark their sheep. It was taken
for a kind of lead, and the mistake survives in the language to this day. The graphite of
Borrowdale was so pure that it could be sawn into sticks, and so valuable, not least for casting
cannonballs, that it was guarded by armed men and smuggled by night. At first the sticks were
wrapped in string or sheepskin; Italian joiners are said to have been the first to lay them into
hollowed wood. When war cut France off from English supplies, an officer named Conté ground poor
graphite to powder, mixed it with clay and fired it in a kiln. By changing the proportions he
could make the core harder or softer, and it is his method that is still in use. The hexagonal
shape came later and has a simple purpose, namely that the thing should not roll off the desk. A
single pencil can draw a line more than thirty miles long.

Night shift, ward six. Quiet until two, which always makes me nervous. Mr Abernathy could not
sleep and told me the whole plot of a Western he had seen as a boy, with all the voices, and
when I came round the next time he had got to the part where the horse dies and was in tears, so
I sat with him until the horse was buried. Bed four, the girl with the appendix, asked every
half hour whether she would be able to dance at the end of the month. The new doctor is about
twelve years old and so polite that he apologises to the drip stands. At three we had an
emergency from below and for forty minutes there was nothing but hands and numbers. It went
well. Afterwards my knees shook, as they always do, and Bernadette gave me half her sandwich
without a word. I love her for never saying anything. Handover at seven; I forgot to mention the
horse. Then home on the bus against the stream of people who smell of soap, with the sun
straight in my face. The children had left me a drawing on the pillow: me with a cape, and a
very big needle.

Switch them on, and the world takes a step back. The Halden 5 headphones use six microphones to
listen to what is going on around you and cancel it before it reaches your ear: the drone of an
engine, the hum of an office, the neighbour's drill. What remains is music, with a warm bass and
voices that sound as though somebody were standing in the room. The ear cushions are filled with
memory foam and covered in a fabric that can be taken off and washed. They are light enough to
be forgotten. With one charge they play for two days of normal use, and ten minutes at the plug
are enough for a whole evening. Press the left cup and speak, and the music fades while the
other person is heard clearly, so that there is no need to take them off in order to order a
drink. They connect to two devices at the same time and know which of them is ringing. Folded,
they fit into a case no larger than a paperback. Every part that wears out, including the
battery, can be replaced at home with the screwdriver we enclose. In the box: headphones, case,
cable, spare cushions and a very short manual.

The ferry left at seven and the boy had been on the quay since five. He had his cap, his bundle
and the letter, and he had promised not to open the letter until the islands were out of sight.
It grew light behind the cranes. A woman came with a crate of ducklings and set it down next to
him, and for a while they both listened to the ducklings. Going far, she asked. To my uncle, he
said, which was true in so far as he had an uncle, although where the uncle was nobody had been
able to say since the winter. She nodded as though that were an address. When the gangway came
down she gave him one handle of the crate, and because of this the man in the white cap took
them for a family and only asked for one ticket. The boy wanted to say something. The woman trod
gently on his foot. Out past the mole the wind got up, the town turned into a handful of dice,
and then the islands came by, one, two, four of them, each with its little house. He took out
the letter. It was, he saw now, not addressed to his uncle at all, but to him.

Incident review, payment outage. What happened: between ten past two and ten to three in the
afternoon roughly a third of all card payments failed with a timeout. Customers saw a blank page
and many tried again, so that some were charged twice. How we noticed: not through our own
alarms but through a message from the shop in Lyon. Why it happened: a certificate on one of the
three gateways expired. The renewal job had run on time, but it wrote the new file to a folder
that was renamed during the spring clean-up, and it reported success because it only checked
that a file had been written somewhere. Why it took forty minutes: the dashboard shows an
average over all gateways, and a third of bad requests looked like a slow network. Two people
were investigating the provider while the answer was in our own logs. What went well: the refund
script worked at the first attempt, and support had a calm text ready within minutes. Actions:
check the certificate from the outside, as a client would; show the gateways separately; add the
age of every certificate to the weekly report; thank Lyon. Nobody is to blame, and the folder
has a sensible name now.

Plum crumble. Halve about a kilo of plums, take out the stones and lay the fruit cut side up in
a shallow dish, packed tightly, since they shrink a good deal. Scatter over three spoonfuls of
brown sugar, a little cinnamon and the juice of an orange. For the topping rub a hundred and
fifty grams of cold butter into two hundred of flour until it looks like coarse sand, with a few
lumps the size of peas left in it, because that is where the crunch comes from. Stir in a
hundred grams of demerara sugar, a fistful of rolled oats and, if you like them, some chopped
hazelnuts. Now the trick, which I learned from a school cook in Dundee: sprinkle a spoonful of
cold water over the mixture and fork it through, so that it clumps. Heap it on the plums without
pressing it down. Bake at a hundred and eighty degrees for forty-five minutes, until the top is
the colour of a good biscuit and purple juice bubbles up around the edge. Let it stand for ten
minutes at least; straight from the oven it will take the skin off your tongue. Custard is
traditional, thick cream is quicker, and both together are no crime.

I have been told that my handwriting looks like the track of a beetle that has fallen into the
ink, and I cannot deny it. At school we were made to copy out whole pages of loops, and I was
always the one whose loops leaned the wrong way. So when the keyboard arrived I welcomed it as
other people welcome a pardon. It took me twenty years to notice what I had lost. A typed
sentence has no past. It can be altered without a scar, and so one begins before one has
thought, trusting that it will all come right in the end. With a pen there is a price to be paid
for every word, small but real, and you find yourself waiting for the second half of the
sentence before you commit to the first. Last winter I started to write letters by hand again,
to friends who are old enough to read them. The lines still sag. But I have noticed that I lie
less. It is hard to be insincere at the speed of a fountain pen; one would have to keep it up
for so long. And somewhere, in a drawer, there will be a sheet of paper on which it can be seen
that I hesitated.

This is the first full life of the botanist Adela Winthrop-Kerr, and it was worth the wait. The
author has gone through forty boxes of letters, most of them unread since the day they were tied
up with ribbon, and she has the rare gift of leaving things out. We follow Adela from the
rectory where she pressed her first primrose to the slopes of Sikkim, where she climbed in
skirts, lost two toes to frostbite, and described thirty-one species, of which seven were later
credited to men who had never left Kew. The chapters on the expeditions are thrilling. I was
less convinced by the middle of the book, in which the quarrels of learned societies are retold
blow by blow, and I could have done with a better map. But the portrait that emerges is
wonderfully alive: a stubborn, funny, rather lonely woman who kept a tame crow and answered
every child who wrote to her. The illustrations, after her own watercolours, are printed on good
paper. Do not skip the notes, which contain some of the best jokes. Readers who liked the same
writer's book on lighthouses will want this one too, and others should start here.

Naples, notes from the train back. You do not look at this city, it looks at you. On the first
morning a grandmother lowered a basket on a rope from the fourth storey right past my nose; a
boy put in a loaf and a packet of cigarettes, and up it went again. The archaeological museum:
three hours, of which I remember above all the tiny things from Pompeii, a strainer with a
pattern of holes like lace, a pan in the form of a hare. Pizza only ever with tomato and basil,
for the price of a newspaper. In the underground station at Toledo I rode up and down the
escalator twice, since it is like swimming through a blue mosaic. The traffic is terrifying
until one has understood that nobody wants to hit you; they only want to know what you have
decided, so you must decide and walk. On Sunday we went over to Procida, a little island with
houses in all the colours of sorbet, and ate lemon salad with mint, made from lemons with so
much white pith that they are practically bread. Things to do differently next time: fewer
churches, more sitting. Take the funicular in the evening. Learn the word for enough.

Dear Aunt Philippa, thank you so much for the parcel, which arrived in one piece apart from the
shortbread, and that tastes just as good in crumbs. The scarf is exactly right. I have worn it
every day, because the heating in the college only comes on in the evenings and the library is
like a cave. You asked how I am getting on. The first weeks were hard, and I will admit to you,
though not to Mother, that I looked up the trains home more than once. But now I have found my
feet. There is a girl called Saskia on my corridor who plays the oboe, luckily well, and with
whom I cook on Thursdays; she does the vegetables and I do the washing up. My favourite lectures
are those on the history of maps. The professor is about a hundred and brings in originals in a
cardboard tube as though they were wallpaper. I have joined the rowing club, mostly for the
cake. It rains constantly, and the river came up over the meadow last week, so that the ducks
were swimming between the bicycles. Give my love to Uncle Hew, and tell him I did read the book
about Trafalgar. Your affectionate niece, Clementine

Assembling your Norrland bookcase. Before you begin, lay all the parts on a carpet and check
them against the list: two side panels marked L and R, one top, one base, five shelves, a thin
back panel in two halves, and a bag with screws. Please do not use a power drill. Push a wooden
dowel into each of the small holes along the edges of the top and base. Stand the left panel on
its long side with the grooved face towards you and press in the base, the fixed shelf and the
top, one after the other, until no gap can be seen; a few taps with a rubber hammer are allowed.
Turn the round fasteners clockwise until they grip. Lay the right panel over the free ends and
repeat. Now slide the two halves of the back panel into the groove from below. They stiffen the
whole thing, so make sure that the corners are square, which they are if both diagonals have the
same length. Only then fix the panel with the short nails, one every hand's breadth. Ask a
second person to help you raise it, and screw the bracket to the wall. A bookcase that has not
been fixed can tip over when a child climbs it.

Lecture notes, how birds find their way. About half of all species in the temperate zone
migrate. Distinguish between calendar and compass: the first tells the animal when to leave,
mainly through the length of the day, the second where to. Compass one, the sun; starlings in a
cage with mirrors turned their direction of flight by exactly the angle by which the sun had
been shifted, and they correct for the hour. Compass two, the stars: Emlen put buntings into a
planetarium with ink on their feet. What counts is the centre of rotation, learned by the
nestlings, and not single constellations. Compass three, the magnetic field, discovered in
Frankfurt with robins in a steel chamber. It responds to the inclination of the field lines
rather than to north and south, and it needs blue light, which suggests a chemical process in
the eye. Still unsettled. A compass alone is not a map, though. Young birds displaced from the
Baltic to the south-east flew on in parallel and ended up in Spain, whereas adults corrected for
it. So experience gives them something more, perhaps smells, perhaps low sounds. Mention the
bar-tailed godwit, eleven days from Alaska to Tasmania without a landing. Exam question: why are
three compasses better than one?

The Estonian rider Kaarel Mägi won the fourth stage of the Tour of the Marches yesterday after
breaking away alone with more than sixty kilometres to go. Hardly anyone had reckoned with the
twenty-two-year-old, who was only called up at the last minute when a team mate went down with a
stomach bug. On the long climb to Carn Fell, in thick fog and with a temperature of four
degrees, he rode away from a group of favourites who were watching each other and did not see
him again until the finish. "I could hear cowbells and thought it was the crowd," he said
afterwards, wrapped in a blanket, "but it really was only cows." The overall leader, Frenchman
Baptiste Loriol, lost nearly two minutes and kept the yellow jersey by a margin of three
seconds. There was a bad moment on the descent, where several riders slid into a wall of straw
bales; all of them were able to carry on, one on a borrowed bicycle that was much too small for
him. Today's stage is flat and should suit the sprinters, provided that the wind does not get
up. The race ends at the weekend with a time trial along the harbour front.

Dear customer service, at the beginning of March I ordered the Balmoral sofa from you in the
fabric called moss. What was delivered, six weeks late, is a sofa of the right shape in a fabric
that can only be described as custard. The two men who carried it up were very pleasant and
agreed with me that it was not green by any stretch of the imagination, but they told me that
they were not permitted to take anything away again without a return form. I asked for this form
on the same day. Your colleague replied that colours may look different on a screen. I am aware
of that. I chose it in your shop, however, from a sample, which I still have, and of which I
attach a photograph lying on the object itself. I then received a voucher for fifteen per cent
off a footstool. I do not want a footstool. I want either the sofa that I ordered, or my money,
and in both cases I want the custard one to be collected, since it blocks the door to the
balcony. Please reply within ten days, with the name of a person I can ring. Otherwise I shall
turn to the ombudsman. Yours, Gregor Thistlewood

Printer prints the first page twice when duplex is on. I maintain the machines in a school with
about thirty teachers, so this gets expensive. The printer is the big colour one with the
stapler, the driver is the current one from your site, installed fresh. To reproduce it: open
any document of three pages or more, choose both sides, long edge, and two copies. The first
copy is correct. In the second copy page one appears on the front and once more on the back, and
everything after it is shifted by one, so that the last page ends up alone on a sheet. With one
copy, or three, everything is fine. With four it goes wrong on the second and the fourth. If I
let the program collate rather than the driver, the error disappears, therefore I think it is
the collation in the driver that counts from the wrong end. The firmware was updated in the
holidays, and I cannot say for certain whether it occurred before. Switching off the stapler has
no influence. I have tried it with three different computers and two operating systems. As a
workaround I now tell people to print one copy twice, and you can imagine how popular that has
made me.

Basalt columns are among the few things in nature that look as if they had been made with a
ruler. They form when a thick layer of lava comes to rest and begins to cool from the outside.
As it cools it shrinks, and because it cannot shrink sideways as a whole, it tears. The tears
run in from the cold surface, and where many of them meet they arrange themselves in the pattern
that releases the greatest stress with the least length of crack. In an ideal case that is a
honeycomb of hexagons, although in reality there are plenty of columns with four, five or seven
sides. The slower the cooling, the thicker the columns: at some sites they are no wider than a
plate, at others as broad as a door. The steps often seen along their length show how the crack
advanced, in small jumps. The best-known examples are the Giant's Causeway in the north of
Ireland, Fingal's Cave on Staffa, and the Devils Postpile in California, and round each of them
there are legends about giants, organ pipes or bears with long claws. Similar columns have been
photographed on Mars. In the kitchen the same process can be watched in a dish of drying starch.

How to survive moving house. Begin two months ahead with the room you use least, which is
usually the attic, and be ruthless. If you have not missed it for three years, you will not miss
it in the new place either. Collect boxes of the same size, as odd ones cannot be stacked, and
never pack a large one with books, unless you want to find out what a slipped disc feels like.
Write on two sides what is inside and in which room it belongs. Photograph the back of the
television before you pull out the cables. Tell the post office, the bank, the insurers, the
doctor and the school in good time; there is always one that is forgotten, and it is always the
one that sends reminders. Defrost the freezer two days before. Put together a bag as though you
were going away for the weekend, with toothbrushes, chargers, a kettle, mugs, loo paper, a light
bulb and something to eat, and keep it with you. On the day itself the most useful thing is a
person who does nothing but stand at the door and say where things go. Make the beds first.
Everything else can wait until you have slept.

The radio operator of the mining ship Perpetua had not spoken to a living soul for eleven weeks,
if you did not count the captain, and nobody did. Her shift consisted of listening. Out here
beyond the second belt the receiver produced a sound like rain on canvas, day and night, and she
had become so used to it that she could tell apart the weather of different stars. On the
seventy-eighth day there was a cough in it. She wound the tape back. A cough, quite clearly,
then a pause, and then somebody cleared his throat as one does before saying something
difficult. She logged it as interference, since there was no code for coughing. On the following
day, at the same minute, there was a breath, and the creak of a chair. She turned up the gain.
She noticed that she herself was leaning forward, that her own chair creaked, and that a moment
later it creaked again in her ears. The nearest thing that could reflect a signal was eleven
weeks away. She pulled the microphone towards her, although there was not supposed to be anybody
to talk to, and for the first time since the harbour she tried to think of something that would
be worth hearing twice.

Fourth driving lesson. Mr Pettigrew says I no longer look as if I were about to be shot, which
from him is high praise. We did hill starts on Quarry Road until the smell of the clutch came in
through the vents. The trick is apparently to listen rather than to look, you wait until the
engine drops its voice like somebody telling a secret, and then you let go. I got it right four
times out of six. The fifth time we rolled back to within a hand's breadth of a hearse, whose
driver raised his hat. Roundabouts are still a mystery to me. I understand them on paper, I even
drew one for my brother with little arrows, but as soon as I am in one I want to apologise to
everybody and stay there for ever. A cyclist banged on the roof. Mr Pettigrew wound down the
window and wished him a pleasant afternoon in such a tone that the man said thank you. On the
way home I was allowed on the dual carriageway, fifty miles an hour, with a lorry in front and a
lorry behind, and for about ten seconds, I swear, it was fun. Theory test at the end of the
month. I must learn the stopping distances.

The last night bus is the only honest vehicle in the city. By day we travel as what we should
like to be, with our briefcases and our pushchairs; at half past two in the morning everyone is
merely what is left over. There is the cook whose hands smell of onions although he has scrubbed
them, the girl with her shoes in her lap, two lads who have quarrelled and are sitting a row
apart and will make it up before the hospital. There is always somebody asleep, and there is
always somebody else who knows where that person has to get off. I used to take this line home
from the printing works, and in three winters I never once heard a telephone conversation that
was not a declaration of love. The driver, in his lit box, has the face of a saint on a stained
window, tired and entirely without curiosity. Now it is to be cut, because the numbers are too
low. It is true, there were seldom more than fifteen of us. But a city does not consist of its
averages. It also consists of the fifteen who are still awake, and who, if you take away their
bus, will walk through it in the dark, each on his own.

I have owned this tent for four seasons now and have slept in it for about sixty nights, from a
garden in Kent to a very exposed ridge in Iceland, so this is not a first impression. It is
described as a three-person tent. That is true if the three are fond of each other. For two with
rucksacks it is just right. Pitching takes one person eight minutes in calm weather, and because
inner and outer go up together, nothing gets wet. In strong wind it hums but does not flap, and
the poles, which have bent into a slight curve over time, have never snapped. The zip is its
weak point: after the first year it began to catch on the storm flap, and last summer it burst
at two in the morning with a cloud of midges outside. The makers replaced it without asking for
a receipt, though I had to wait seven weeks. Condensation is moderate if you leave the top vent
open. It weighs a little under three kilos, more than the catalogue claims, as they do not count
the bag and the pegs. Speaking of pegs, throw away those supplied and buy decent ones. Would I
buy it again? Yes, but in green, since the orange attracts every wasp in the county.

Notes from the parents' evening, class 3b. About twenty families were present. Miss Okonjo
introduced herself as the new form teacher and said how much she liked the children, including
the loud ones. This year's topics: the Romans, electricity, and long division, which will be
taught by a method unlike the one we remember, and we are asked not to show them ours. Homework
on Mondays and Thursdays, no longer than half an hour; if it takes longer, draw a line
underneath and sign it. The swimming lessons begin after the autumn break, long hair to be tied
back, names in towels please. Head lice are going round again. There was a lively debate on
packed lunches, which ended with the agreement that sweets are for Fridays. Mr Dunmore asked
about telephones and smartwatches; they stay in the bag, switched off, and if they ring they
spend the day in the head's office. The class trip goes to the mining museum. Two more adults
are needed to go along, and anyone who offers should be aware that there are a hundred and
ninety steps. Elections: Mrs Vasquez and Mr Dunmore will represent us, after nobody else had
raised a hand for what felt like a very long time.

To whom it may concern. Mr Tobias Wren worked in our workshop as an apprentice and later as a
journeyman cabinetmaker for a total of seven years, and it is with real regret that we let him
go. He came to us at sixteen, unable to saw a straight line and unwilling to be told so. He
leaves as one of the two or three best hands at dovetailing that I have had in thirty years.
What I value in him even more than his skill is his judgement. He sees which board will warp,
and which customer will change his mind. For the restoration of the court library he took on the
staircase, alone and to a deadline, and not one tread has creaked since. He is punctual, he
cleans his machines without being asked, and the younger ones go to him with questions that they
would not dare to put to me. If I am to name a weakness, it is that he cannot bear to let a
thing out of the door before it is perfect, and this does not always agree with the estimate. He
is leaving in order to be closer to his family in the north. Any workshop which takes him on may
consider itself lucky. Ernestine Vogt, master cabinetmaker

Rhetoric, week two: the three appeals. Aristotle says that a speaker persuades by his character,
by stirring the listeners, and by the argument itself. We usually treat them as three drawers,
but in practice they are ropes twisted together. Take the example of the doctor who says: I gave
these tablets to my own mother. That is ethos, because she shows herself to be trustworthy, and
pathos, since we picture the mother, and logos too, for who would know better? Discuss when such
a sentence becomes a trick. Next, the difference between a proof and an enthymeme, that is, an
argument with a missing step that the audience supplies. It works because we like what we have
completed ourselves. Advertising lives off this. Exercise: each group receives a poster from the
nineteen-fifties and writes down the unspoken premise. The results are generally hilarious and
somewhat depressing. Then kairos, the right moment. Read aloud the opening of the speech at the
dockyard and the same sentences moved to the end; ask what has been lost. Warn against the idea
that rhetoric is the opposite of truth. Even the claim that one is a plain man with no gift for
words is a figure of speech, and an old one. Homework: find it in a newspaper.

Flatbreads with spiced chickpeas, a weeknight supper for four. Mix three hundred grams of plain
flour with a teaspoon of baking powder, the same of salt, and as much yoghurt as it takes to
make a soft dough, roughly a small tub. Knead for a minute, cover with a plate and forget about
it. In a wide pan fry two onions, cut into half moons, until they are properly brown at the
edges; do not cheat, it takes a quarter of an hour. Add three cloves of garlic, a thumb of
grated ginger, a spoonful each of cumin and coriander seed and half a spoon of chilli flakes,
and stir until the kitchen smells like a better place. Tip in two tins of drained chickpeas and
a tin of chopped tomatoes. Let it bubble until it is thick, then squash some of the chickpeas
with the back of a spoon. Divide the dough into eight, roll each piece out as thin as a beer mat
and bake them one by one in a dry, very hot pan, a minute per side, until they blister. Keep
them warm in a cloth. Serve with a dollop of yoghurt, lots of fresh coriander and a wedge of
lime. Leftovers make an excellent filling for a toasted sandwich.

Outer Hebrides, Tuesday. Crossed from Uig in a swell that sent most of the passengers below and
me, thanks to my tablets, up on deck with a bacon roll. Gannets diving all around like thrown
knives. From Tarbert I walked the old path to Rhenigidale, a village that had no road until
about thirty years ago; the postman used to come over the hill on foot, three times a week.
Zigzags, cairns, a burn to wade through, and not a soul except for a ewe which accompanied me
for half a mile in the hope of something. Bog cotton everywhere. The hostel is a white cottage
by the water with eleven beds and a stove. You put your money into a tin. A couple from Antwerp
had caught mackerel and shared them out, a teacher contributed whisky, I had nothing but raisins
and was made to sing instead. It stays light so long that nobody thinks of going to bed. Around
midnight an otter came along the shore, quite unhurried, took a look at us and carried on with
its evening. Distance eleven miles, with blisters on both heels. Tomorrow to the beach at
Luskentyre, provided that the bus exists. The timetable and the warden disagree about this.

Toads, hedgehogs and the occasional badger now have their own way under the busy ring road at
Oakhanger. Volunteers and council workers finished the last of four tunnels at the weekend,
after two years of collecting donations. Until now, helpers in yellow vests had carried the
toads across in buckets on wet spring nights, more than six thousand of them in the last season
alone. "My back is looking forward to the tunnels even more than the toads are," joked the head
of the group, retired postwoman Greta Mulholland, at the opening. Low fences along both sides
guide the animals to the entrances, where the floor has been covered with damp soil so that they
do not dry out. A camera in each tunnel will record who uses it. During the first night it
caught eleven toads, a shrew, and a fox that looked in, sniffed and turned back. Similar
crossings have been built in the Netherlands and in Canada, where even bears have got used to
them. Critics in the council had complained about the cost of ninety thousand pounds. It was
pointed out to them that a single accident with a deer costs the insurers rather more than a
tunnel, and deer will get their bridge next.

Dear Professor Achterberg, on behalf of the programme committee I have the pleasure of inviting
you to give the closing talk at our annual meeting on urban water, which will be held this year
in Porto. Your work on the old cisterns of Istanbul was mentioned by no fewer than four members
of the committee, quite independently of each other, and we should be honoured if you could tell
us what modern planners may learn from them. The talk would last forty minutes, followed by
questions. Our audience is mixed: about half are engineers, the rest come from city
administrations, and there are usually a few architects who sit at the back and draw. We would
of course pay for your journey and for three nights in a hotel beside the river, and there is a
modest fee, which I am a little embarrassed to name in an e-mail. On the last afternoon there
will be an excursion by boat to the filter beds, with lunch. It would help us a great deal to
know by the middle of next month whether you can come, as the printers are pressing us for a
title. Please do not hesitate to ring me. With kind regards, Sunniva Aldous, secretary

They had agreed to do the attic in one day, and by noon they had done one box. Look, said Nell,
his reports. Their father had kept everything, the tickets, the guarantees for radios that had
long been scrap, a paper bag with the words string, too short to use. Judith sat on the
rolled-up carpet and read out what the teachers had thought of him. Talkative. Could do better.
Has a kind word for everyone but does not know the rivers. Outside, the man with the skip was
looking at his watch. We must decide, said Judith, keep or go. Keep, said Nell. You have said
that every time. Then they found the shoebox. It contained thirty-four birthday cards, in
envelopes, with stamps, addressed in his square capitals to a person called Rosalind, at a
street in Cardiff, and not one of them had been posted. The most recent was from the previous
spring. They did not open them, not at first. They put them in order by year, as he would have
done. That is older than me, said Nell, holding up the first, and that one is exactly as old as
you. The skip man called up the stairs. Keep, said Judith.

You want to start a podcast? You need less than you think. A decent microphone that plugs
straight into the computer costs about as much as a pair of trainers, and the wardrobe full of
clothes you already have is better than any foam on the wall. Sit close, a hand's width from the
microphone and slightly to the side, so that the p and the b do not explode. Record each voice
on a separate track, even if you are in the same room, because one of you will cough. Before you
start, write down three questions to which you truly want to know the answer; everything else
will come by itself, or else it was not worth having. Do not read from a script. Let pauses
happen. When cutting, throw out the first five minutes, in which everyone is still being polite,
and be careful with the little hesitations: take them all away and your guest sounds like a
robot. Listen to the whole thing once on bad headphones in a noisy street. Publish on the same
day of the week, always. And do not look at the figures for the first ten episodes. You are
doing it for the forty people who are listening, and forty is a full room.

The umbrella was a shade long before it was a shelter. In ancient Egypt, Assyria and China it
was carried over the heads of the powerful, and the number of tiers on a parasol could indicate
a rank as exactly as stripes on a sleeve. It seems to have been the Chinese who first waxed and
lacquered the paper so that it would keep off the rain. In Europe it was regarded for a long
time as an accessory for ladies. The London philanthropist Jonas Hanway, who from the middle of
the eighteenth century went about with one in all weathers, was jeered at by passers-by and
pelted by coachmen, who feared for their trade. He carried on for thirty years, by which time
the street had given in. Early models had ribs of whalebone and covers of oiled cotton, weighed
as much as a small child, and could hardly be opened when wet. The turning point came in 1852,
when Samuel Fox, a maker of wire, used up leftover steel in a light, grooved frame. The folding
version that fits into a bag was devised by a mining engineer who walked with a stick and had no
hand free. Several thousand are handed in at lost property offices every year, and few are ever
collected.

Dear colleagues, dear guests, they told me that I have five minutes, and that Ottoline will be
standing at the back with a bell. Thirty-eight years ago I came through that door in a borrowed
suit and was shown to a desk with three legs and a stack of telephone directories for the
fourth. I thought, I shall stay until Christmas. Since then I have outlasted four directors, two
names for the company, asbestos, and the canteen's experiment with quinoa. I have been asked
what I shall miss. Not the meetings. I shall miss the ten minutes before the meetings, when
people are still themselves. I shall miss the sound of the old franking machine, which is gone
already. And I shall miss Desai from despatch, who has beaten me at draughts every lunch hour
since 1994, and who has, I may as well say it in public, cheated at least twice. To the young
ones I can give only one piece of advice: learn the name of the person who cleans your office.
She knows everything, and she will be here when you have locked yourself out. Thank you for the
barometer. It says change, and I think that it is right. I can hear the bell.

Questions people ask us at the repair café. What may I bring? Anything you can carry and that
has stopped doing what it should: lamps, toasters, trousers, chairs, laptops, toys that used to
sing. Please, no microwave ovens, as they can be dangerous even when unplugged. Who does the
repairing? You do, with somebody at your side who knows how. We have two electricians, a
seamstress, a retired watchmaker, and Leopold, who can mend anything as long as nobody watches.
What does it cost? Nothing, but there is a jar. If a spare part is needed, you order it yourself
and come back with it. Is there a guarantee? No, and we will ask you to sign a piece of paper
that says so. About two thirds of all things leave us in working order; for the rest we can at
least tell you the cause of death. Do I have to book? For computers, yes, for everything else
you just take a number and have some cake. Why do you do this? Because a kettle with a broken
switch is not rubbish, it is a kettle with a broken switch. And because you get to know your
neighbours very quickly when you are both lying under the same sewing machine.

A month ago I deleted the three apps that I opened most, and since a few of you asked, here is
how it went. Week one was embarrassing. My thumb kept going to the spot where the icon had been,
in the lift, at the crossing, once in the middle of a conversation with my own father. I had not
known that I had so many gaps in my day, nor how carefully I had been filling them in. In the
second week I was bored, really bored, like a child on a wet afternoon, and out of boredom I
learned the names of the trees in our street. There are six sorts. In the third I noticed that I
had nothing to be furious about. This was pleasant, and also slightly alarming, because I could
no longer tell which of my opinions had been mine. What did I miss? Two birthdays, an exhibition
that I would have liked, and a joke about a goose which everybody seems to know. What did I
gain? I have read four novels. I ring people up. I sleep. I shall probably go back to one of the
three in the end, on the computer, at a desk, like someone checking the post. But the pocket
remains empty, and it feels astonishingly light.

Sprint retrospective, mobile team, taken down by Yusuf because it was his turn. What we liked:
pairing on the map screen, which took half as long as feared; the new test phones; the fact that
nobody worked late, not even during the demo week. What we did not like: three tickets came back
from testing because the texts were missing, and each time it turned out that the texts existed
but in an older document. Ines said that she never knows which of the two documents counts. Long
discussion, with the result that the older one gets deleted on the spot, which was done, to
applause. The build takes twenty-six minutes on the shared machine. Piotr showed that eleven of
these go into compiling a library we use for a single icon. We want to draw the icon ourselves.
Mood overall: seven out of ten, up from six. Things to try in the coming two weeks: write the
acceptance criteria before estimating and not after; one afternoon without any meetings, for
which the team voted Tuesday; and whoever breaks the build brings fruit. Kudos to Ines for
explaining offline maps to the sales people with a tablecloth and two forks. Yusuf hands over
the pen to Marguerite.

Guide for our guests at the mill cottage. Welcome! The stove in the sitting room heats the whole
house if you leave the doors open, and the logs are in the lean-to on the left; take the split
ones from the front, those at the back are still green. Open the lower flap to light it and
close it by half as soon as the fire is roaring. The hot water comes from a tank, so that two
people can shower one after the other, but the third should wait an hour and is usually the one
who got up last. The tap in the yard is spring water and you may drink it. Please keep the gate
shut because of the sheep, who are not ours and have strong views on lettuce. You may hear
footsteps overhead at night. It is a dormouse, she has lived there longer than we have. For
bread go to the farm at the top of the lane before ten, ring, and wait, since Mrs Protheroe is
deaf and her dog is not. Mobile phones work on the stile and nowhere else. On the day you leave,
strip the beds, put the ashes into the metal bucket, and write something in the book, we read
every word.
"""
