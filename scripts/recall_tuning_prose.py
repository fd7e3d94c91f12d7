"""Prose as users paste it, to plant the third set of facts in."""

PROSE = """\
Hi Margaret, thanks for sending the draft budget over before the weekend. I went through it on
the train this morning and most of it looks fine to me. There are three things I would like to
talk about before we show it to the board. First, the travel line has nearly doubled since
last year, and I cannot see any note that explains why. If it is because of the two
conferences in the spring, please say so, because somebody will certainly ask. Second, the
cost of the new heating system appears twice, once under repairs and once under equipment,
which makes the total about four thousand higher than it should be. Third, I think we should
keep a small reserve for the roof. The builder told us it would last another ten years, but he
also told us the gutters were sound, and we all remember what happened in November. Could you
find half an hour on Tuesday afternoon? I am free from two until four, and I can come to your
office if that is easier. I will bring the old invoices so we can check the heating figures
together. Best wishes to Tom and the children, and I hope the cough is better by now. Kind
regards, Helen

The town council of Brackenford voted on Monday night to close the old iron bridge to cars
from the first of June. Engineers who inspected the structure in February found rust in
several of the main supports and warned that heavy traffic could cause serious damage within a
few years. Pedestrians and cyclists will still be able to cross. Drivers will have to use the
ring road, which adds about six minutes to a journey from the station to the hospital. Shop
owners on the east side of the river said they were worried about losing customers. "People
will simply go to the supermarket instead," said Peter Lomax, who has sold fish on Bridge
Street for thirty years. Others welcomed the decision. A group of parents from the nearby
primary school has been asking for quieter streets since a boy was knocked off his bicycle two
years ago. The mayor said the council had applied for a national grant that would pay for most
of the repairs, but she admitted that the answer might not come until next winter. If the
money is approved, work could start the following spring and would probably take eighteen
months. A public meeting will be held in the library next Thursday at seven.

For a simple lentil soup that feeds four hungry people, start by chopping one large onion, two
carrots and a stick of celery as finely as you can manage. Warm three spoonfuls of olive oil
in a heavy pot and cook the vegetables slowly, with a good pinch of salt, until they are soft
and smell sweet. This takes about ten minutes and it is worth being patient, because most of
the flavour comes from this step. Add two cloves of crushed garlic, a teaspoon of ground cumin
and half a teaspoon of smoked paprika, and stir for a minute. Tip in a cup and a half of red
lentils, rinsed under cold water, and a tin of chopped tomatoes. Pour over a litre of stock,
bring it to the boil, then turn the heat down and let it bubble gently for twenty five
minutes. The lentils should fall apart when you press them with a spoon. If you like a smooth
soup, blend half of it and mix it back in. Just before you serve, squeeze in the juice of a
lemon and taste for salt. I usually eat it with toasted bread and a spoonful of plain yoghurt.
It keeps for three days in the fridge and freezes very well.

Minutes of the allotment society meeting, held in the village hall on the ninth of March.
Present were the chair, the secretary, the treasurer and fourteen members. Apologies were
received from Mr Okafor and Mrs Bell. The minutes of the previous meeting were read and
accepted. The treasurer reported that there was a little over twelve hundred pounds in the
account after paying for the new water tank. Three members have not yet paid their rent for
the year and will be sent a polite reminder. There was a long discussion about rabbits.
Several members have lost young cabbages and beans, and it was agreed that the fence along the
north side should be repaired before the end of the month. Mr Singh offered to collect the
wire, and six people volunteered to help on the last Saturday. The secretary asked members not
to light bonfires before dusk, as neighbours have complained about smoke on their washing. The
summer show will take place on the second Sunday of August, and a new prize for the ugliest
vegetable was proposed and carried with much laughter. Under any other business, Miss Grant
asked whether the shed could be painted green. This was left to the next meeting. The meeting
closed at ten past nine.

The Willow kettle is made for people who drink tea all day and do not want to wake the rest of
the house. It boils a full litre in just under four minutes, yet it is quieter than most
dishwashers, thanks to a thick double wall that also keeps the outside cool enough to touch. A
small dial on the handle lets you choose any temperature between sixty and one hundred
degrees, so green tea and white tea no longer come out bitter. The lid opens wide enough to
fit a hand inside, which makes cleaning easy, and the filter lifts out and can go in the top
rack of the dishwasher. We chose plain steel for every part that touches the water, with no
plastic at all, because many of our customers told us they could taste it. The cord wraps
neatly under the base, and the switch is large enough to use with wet or painful fingers. The
kettle comes in cream, dark blue and a soft grey, with a three year guarantee and free repairs
during that time. If you are not happy with it after a month of daily use, send it back and we
will return your money without asking any questions.

Wednesday. I woke at five again and could not get back to sleep, so I sat in the kitchen with
a blanket round my shoulders and watched the light come up behind the gasworks. It was rather
beautiful, in its way. The cat was surprised to see me and demanded breakfast twice. I have
been thinking about what Dr Farrow said, that I should write down one good thing every
evening, and it occurred to me that I have managed it only three times in two weeks. So here
is one for today, early: the sky at half past five, pink as the inside of a shell. At work
everyone was in a temper because the printer had broken down and the man could not come until
Friday. I hid in the back room and finished the letters by hand, and nobody noticed. In the
afternoon Julia rang to say the baby had a tooth. She held the telephone to his mouth so that
I could hear him biting the spoon, which was nonsense, of course, but I cried a little
afterwards in the corridor. I must buy stamps tomorrow and pay the window cleaner. It has
begun to rain and the gutter above the bathroom is dripping again.

The hoopoe is a medium sized bird found across much of southern Europe, Asia and Africa. It is
easily recognised by the crown of long feathers on its head, which it can raise and lower like
a fan, and by its broad wings marked in black and white. The body is a warm sandy brown. Its
name comes from the soft call of the male in spring, which carries a surprising distance over
open ground. Hoopoes feed mainly on insects, especially beetle grubs and crickets, which they
find by pushing their long curved bill into loose soil or old dung. They nest in holes in
trees, walls and banks, and the female sits on the eggs alone while the male brings her food.
The nest is famous for its smell. The sitting female produces a dark oil that reeks of rotting
meat and seems to protect the eggs from harmful bacteria, and the chicks can spray an attacker
with droppings when they are less than a week old. In many countries the bird has been a
symbol of wisdom or virtue, and it appears in old Persian poems as the leader of all the
birds. Most northern populations spend the winter in the tropics and return in March or April.

We arrived in the port just after dawn, with our legs stiff from a night on the deck, and the
first thing we noticed was the smell of bread. There is a bakery directly behind the customs
shed, and at that hour it sells flat rolls filled with cheese to the fishermen as they come
ashore. We bought four and ate them on the sea wall. The bus to the mountains does not leave
until ten, so there is time to walk up through the old quarter, where the lanes are so narrow
that you must step into a doorway to let a donkey pass. Do not trust the map from the tourist
office, which shows two streets that fell down in the earthquake. The road inland climbs for
an hour through olive groves and then through pine forest, with hairpin bends that made my
sister close her eyes. We stayed in a house with blue shutters owned by a widow called Eleni,
who charges very little and cooks whatever her nephew has shot. There is no heating, so bring
a warm jumper even in May. From the terrace you can see three islands, and, on a clear
evening, the coast of another country altogether.

The lighthouse keeper had not spoken to anyone for eleven days when the boat appeared. At
first he took it for a seal, a dark spot rising and falling in the grey swell beyond the reef,
but then it turned and he saw a scrap of orange cloth tied to an oar. He put down his pipe and
went to the window. There was no sail, and no one seemed to be rowing. The tide was carrying
it towards the rocks they called the Sisters, where two ships had been lost in his
grandfather's time. He took the stairs three at a time, which he had not done in years, and
dragged the small boat from its shed across the shingle. His hands remembered what to do,
though his knees complained. By the time he reached the drifting craft he was soaked through
and his heart was hammering so hard that he had to rest before he could look over the side. A
girl of perhaps nine lay in the bottom with her arms around a large brown dog. The dog lifted
its head and growled. "All right," said the keeper, and his own voice sounded strange to him.
"All right, old fellow. I am not going to hurt her."

Why do we find it so hard to throw things away? I ask the question as a person who owns seven
broken umbrellas. Each of them, I tell myself, could be repaired. Each belonged to a
particular winter, or was left behind by a guest who may come back for it. Of course the truth
is simpler. To throw away an object is to admit that we spent money badly, or that a plan we
once had will never be carried out. The guitar in the cupboard is not a guitar at all; it is
the young man who was going to learn to play it. As long as it stands there under its dust, he
is still alive, still promising to begin on Monday. This is why the cheerful advice in
magazines never quite works. They tell us to keep only what is useful or what brings us joy,
as though those were the only reasons that anybody ever kept anything. But we also keep things
out of guilt, loyalty, superstition and hope. My grandmother saved string in a tin marked
"pieces too short to use". We laughed at her for it. Now the tin is on my desk, and I would
not part with it for any money.

To change a bicycle tyre you need two plastic levers, a pump and a little patience. Begin by
turning the bicycle upside down on a cloth, so that it rests on the saddle and the handlebars.
Open the brake, then loosen the nuts or the quick release and lift the wheel out. If it is the
back wheel, move the chain to the smallest cog first, and remember how it lay, because you
will have to put it back the same way. Let out any air that is left. Push the first lever
under the edge of the tyre, opposite the valve, and hook the other end round a spoke. Put the
second lever in a few inches away and slide it along the rim until one whole side has come
free. Now pull out the inner tube. Before you fit the new one, run your fingers carefully
round the inside of the tyre to find whatever caused the hole, or you will be doing all of
this again tomorrow. Pump a small amount of air into the new tube so that it holds its shape,
put the valve through the hole and tuck the tube in. Finish with your thumbs, not the levers,
since they can pinch the rubber.

I stayed at the Harbour View for two nights in October with my husband and his elderly mother,
and I have mixed feelings about it. The good points first. The staff could not have been
kinder, especially the young woman at the desk, who found us a ground floor room when she saw
the walking stick and even carried up a second heater. The breakfast was excellent, with real
kippers, fresh fruit and as much coffee as you could drink. The bed was comfortable and the
sheets were clean. However, I do think that a hotel with that name should have a view of the
harbour. Ours was of a car park and the back of a fish restaurant, whose extractor fan ran
until midnight. The hot water was slow to arrive and left without warning. There was also a
charge of fifteen pounds for parking which is not mentioned anywhere on the website, and when
I asked about it I was told that everybody knows. Well, we did not. On balance I would stay
again, but only in summer, only on the top floor, and only if someone could promise me that
the fan had been repaired. Three stars from me, and five for the kippers.

When I open a saved project in version four point two and press undo more than once, the
program closes without any message. I have been able to repeat this on two different
computers, a laptop with eight gigabytes of memory and an older desktop in the office. It does
not happen in a new project, only in one that has been saved and opened again. Here is exactly
what I do. I start the program, choose open from the file menu, and pick any project that has
at least two layers. I draw a line on the first layer, then another on the second. I press
undo, and the second line goes away as it should. I press undo again, the window freezes for
about a second, and then everything is gone. I expected the first line to disappear too. If I
merge the layers before I begin, the problem does not occur, so I suspect it has something to
do with how the list of changes is kept for each layer. The previous version, which I used
until last week, did not have this fault. I have attached a small project and the log. There
is no hurry on my side, but others may lose work because of it.

Dear Mr Abernathy, I am writing to you about the pear tree that stands on the boundary between
our two gardens. I hope you will take this letter in the friendly spirit in which it is meant.
As you know, the tree is very old and has grown a good deal since you moved in, and several of
its branches now hang over our greenhouse. During the gale last Thursday one of them came down
and broke four panes. Nobody was hurt, I am glad to say, but my wife had been watering the
tomatoes in that very spot not half an hour before. I do not want to see the tree cut down. We
have enjoyed its blossom every April for twenty two years, and your late uncle used to pass a
basket of fruit over the wall each autumn. Might we share the cost of having it looked at by
somebody who understands such things? My brother recommends a man from Castle Street who
charges a fair price and leaves the place tidy. As to the glass, I would be happy to settle
for half. Do come and have a cup of tea whenever it suits you, and we can look at the branches
together. Yours sincerely, Walter Finch

Last week we looked at how prices carry information, and today I want to ask what happens when
they cannot. Think of a town with one doctor and one well. If there is a drought, the price of
water ought to rise, and people ought to use less of it. But suppose the council fixes the
price, for perfectly decent reasons, because it does not want the poor to go thirsty. Now the
water has to be shared out in some other way. There may be a queue, so that it goes to those
with the most time. There may be favours, so that it goes to those with the most friends. Or
there may be a ration, so that everyone gets the same whether they have a baby in the house or
live alone. None of these is obviously wicked, and in a real emergency the ration may well be
the best of the three. The point I want you to write down is that scarcity does not vanish
when the price is held still. It only changes its clothes. In the seminar I would like each of
you to bring an example from your own life of something that was shared without prices, and to
tell us who got more than their share.

Getting rid of moss on a lawn takes a whole year if you want to do it properly, but none of
the work is difficult. In early spring, on a dry day, rake the grass hard with a wire rake to
pull out as much as you can. It will look dreadful afterwards. Do not worry. Moss grows where
the soil is damp, shaded, hungry or packed down, so the real cure is to change those
conditions. Push a garden fork into the ground every few inches and wiggle it to let the air
in, then brush coarse sand into the holes. Cut back any shrubs which keep the sun off, and
feed the grass in April and again in June. When you mow, set the blades higher than you think
you should. Short grass is weak grass, and moss loves nothing better than a lawn that has been
shaved like a billiard table. In September, scatter fresh seed over the bare patches and keep
it moist until it comes up. You can buy black powders that kill moss in a fortnight, and they
work, but it will be back by Christmas unless you have done the rest. If part of the lawn
never gets any light at all, consider growing ferns there instead.

Hey Dani, so the flat is officially ours! We got the keys on Friday and spent the first night
on an air bed in the living room with a pizza and two candles because the power was still off.
It is smaller than I remembered and there is a weird brown stain on the ceiling that looks
like Australia, but the balcony gets the sun all afternoon and the woman downstairs has
already brought us a cake. Marco wants to paint the hall dark green. I said we should live
here for a month before we decide anything, and then I came home on Sunday and he had bought
the paint. Anyway, when are you coming? The sofa turns into a bed and you would have your own
door, which is more than you had at my old place. There is a direct train from you on weekday
mornings that takes just over two hours, and I can take the Thursday off. We could go to that
market you liked and then I could show you the swimming lake, if it is warm enough. Bring the
dog. Tell your mum I still have her pie dish and that I feel terrible about it. Love, Nina

A retired postman from the north coast has become the oldest person to swim across Lough
Varrin, completing the six mile crossing in a little over four hours on Sunday. Desmond
Kearney, who will be eighty one next month, was greeted by a brass band and about two hundred
people as he walked out of the water, wrapped himself in a towel and asked for a bacon
sandwich. He said that the hardest part had been the last mile, when the wind changed and
small waves began to slap him in the face. "I sang hymns until I ran out of hymns," he told
reporters. "Then I sang the adverts from the radio." Mr Kearney learned to swim only when he
was sixty three, after his wife persuaded him to join her class at the leisure centre. She
died five years ago, and the swim raised more than nineteen thousand euros for the hospice
where she was cared for. His daughter followed in a rowing boat with hot soup and a whistle.
She said that the family had tried to talk him out of it and had failed completely, as they
had expected to. Asked about his plans, he said he would like to try it in the other
direction.

My aunt's honey cake is not hard to make, but it must be baked two days before you want to eat
it. Melt a hundred and fifty grams of butter with the same weight of brown sugar and a large
cup of dark honey, and leave the mixture to cool until you can put a finger in it comfortably.
Beat in three eggs, one at a time. In another bowl, sift three hundred grams of plain flour
with two teaspoons of baking powder, a spoonful of cinnamon, a little ground ginger and a very
small amount of clove. Fold the dry ingredients into the wet ones, then add half a cup of
strong black tea, which sounds odd but keeps the crumb tender. Pour everything into a square
tin lined with paper and bake it in a low oven for about fifty minutes. It is ready when a
thin knife comes out clean. Let it cool in the tin, wrap it tightly, and hide it somewhere the
children will not look. On the third day it will be dark, sticky and far better than it was on
the first. Serve it in small pieces, because it is rich, with slices of sharp apple or a glass
of cold milk.

Notes from Thursday's product call. We began with the delivery app, which crashed for about
one driver in ten over the weekend. Priya has found the cause: when a phone loses its signal
inside a lift, the app keeps asking for the route until the memory is full. A fix is being
tested and should go out on Monday morning. Until then, drivers have been told to close the
map before they enter a building. Next, Luis showed the new order page. Everyone liked the
larger buttons, but Karen pointed out that the price disappears on small screens, and that
nobody will press "buy" if they cannot see what they are paying. Luis will move it to the top.
We then talked about hiring. There were sixty applications for the support role and we plan to
speak to eight people next week. Please look at the calendar and put your name against two of
them. Omar asked whether we could stop having this call at half past eight, since he has to
take his son to nursery. It was agreed to try ten o'clock for a month. Actions: Priya to
release the fix, Luis to change the page, Omar to send the new invitation, and Karen to write
to the drivers.

If your back hurts after a day at the desk, the chair is probably to blame, and this one was
built to put things right. The Alder seat moves with you. When you lean back, the lower part
follows your spine instead of leaving a gap, and when you sit forward to write, the front edge
drops slightly so that it does not press on your legs. There are five adjustments, each marked
with a small picture, and all of them can be reached without bending over. The cover is a
strong wool cloth from a mill in Yorkshire, warm in winter and cool in summer, and it unzips
for washing. Under it there is no foam that goes flat after a year, but a web of elastic
straps that we replace free of charge if they ever go slack. The arms can be lowered to slide
beneath a table or taken off altogether. We have tested the frame with people from forty five
to a hundred and forty kilograms, and with one large dog. It arrives in a flat box with a
single tool, and most customers tell us that they had it together within twenty minutes. Try
it for sixty days, and if it does not suit you, we will fetch it back.

Saturday, late. I have done it. I handed in my notice yesterday and nobody fainted. Mr Dunne
looked at the letter for a long while, took off his glasses and said he had wondered when I
would get round to it. Then he shook my hand, which he has never done in nine years. I had
prepared a whole speech about the bakery, with figures, and I did not need any of it. Now I am
sitting on the bed with a notebook, feeling as if I have jumped off a wall and have not yet
landed. Ruth thinks that I am mad. She did not say so, but she asked about the pension twice.
My father, on the other hand, laughed out loud and said that my great grandfather had kept a
bread oven in Limerick and lost everything he owned on a horse. I am not sure it was meant as
encouragement. There is so much to do. I need to see the man about the lease, order flour,
choose a name, and find somebody who can mend the floor. I also need to learn to get up at
three in the morning and be cheerful about it. But oh, the quiet of those streets, and the
smell of the first loaves!

Salt has been produced in the marshes of the western coast for at least a thousand years. Sea
water is let in at high tide through a series of shallow clay ponds, each a little lower than
the one before, and as it travels it grows warmer and more concentrated under the sun and the
wind. By the time it reaches the last and smallest basins, the brine is about ten times
saltier than the ocean, and crystals begin to form. The coarse grey salt sinks to the bottom
and is raked out every day or two. The finest, which is white and smells faintly of violets,
floats upon the surface on calm evenings like thin ice, and must be skimmed off by hand before
the dew falls. A single worker looks after around sixty basins and may gather two tons of grey
salt and only a few kilos of white in a good week. Rain is the great enemy, since one heavy
storm can dissolve the labour of a month. In the nineteenth century cheap rock salt brought by
railway nearly ruined the trade, and many ponds were left to the herons. It has recovered
since the nineteen seventies, partly thanks to cooks and partly to the birds themselves.

Day four of the walk, and the first without blisters. We left the hostel at seven with dry
socks and a bag of cherries that the warden pressed on us, and followed the river as far as
the ruined mill. After that the path climbs steeply through beech woods. It had rained in the
night and everything was dripping and bright, and every few minutes we heard a cuckoo without
once seeing it. At the top there is a wooden cross and a bench where we met two Dutch sisters
in their seventies who do this route each year and complain about it every time. They gave us
plasters and told us which farm sells cheese. The descent was harder than the climb, as the
stones were slippery and Paul's knee had begun to swell. By three we had reached the village,
only to discover that the shop was shut, the inn was full and the bus ran only on school days.
A man mending a fence took pity on us and let us sleep in his hay barn, on condition that we
did not smoke. We have never slept so well. Eighteen kilometres, two wrong turns, one adder.
Tomorrow the lake, and with luck a hot shower.

"You can't keep a horse in a flat," said the landlord. He was a short man with a folder under
his arm, and he said it in the tired voice of somebody who had never expected to need those
particular words. Mrs Pelham looked at him over her knitting. "He is not being kept," she
replied. "He is visiting." Behind her, in the space between the sideboard and the window, the
horse shifted its weight from one hoof to another and blew softly through its nose. It was a
small horse, but it was not a very small one. A crocheted blanket lay across its back. "How
did you get it up the stairs?" the landlord asked, although he had meant to say something
else. There were four floors, and the lift had been broken since Easter. He knew this because
he had promised to repair it. "Carrots," said Mrs Pelham. She put down her needles, rose with
some difficulty, and offered him a chair. "Now, Mr Gribble, you'll have a slice of seed cake,
and then we shall talk about the lift, and the damp, and the window which doesn't close. After
that, I daresay, we can talk about Captain." The horse looked at the landlord with interest.

There is a kind of politeness that is really a way of not listening. You will have met it at
parties. The other person nods, smiles and says "how interesting" at the right moments, and
all the time his eyes are wandering about the room like a dog looking for a place to lie down.
I would rather be contradicted. A person who tells me I am wrong has at least heard what I
said, and has gone to the trouble of holding it up against what he knows. My old teacher of
history was famous for rudeness of this useful kind. She would stop a pupil in the middle of a
sentence and ask, "Do you believe that, or did you read it?" Most of us had only read it. It
was a dreadful question, and I have asked it of myself nearly every day since. I do not mean
to praise bad manners. There are plenty of people who interrupt only because they love the
sound of their own voices, and they listen even less than the nodders do. What I am praising
is attention, and attention is seldom smooth. It frowns, it asks you to say it again, and now
and then it changes its mind.

Please read these instructions before you use the tent for the first time. Choose a level
piece of ground, away from single trees and dry stream beds, and clear it of sharp stones.
Unroll the groundsheet with the shiny side facing down and peg the four corners, pulling each
one tight before you go on to the next. The two long poles have red ends and the short pole
has a yellow end. Slide the red poles through the sleeves so that they cross in the middle,
and fit the tips into the metal eyes at the corners. Two people should lift together; if you
are alone, raise one pole half way, then the other. The yellow pole makes the porch. Once the
frame is standing, throw the outer sheet over it, with the door on the side sheltered from the
wind, and clip it down. Peg out the guy ropes last of all. They ought to be firm but not so
tight that the seams are under strain. Never cook inside the tent, and leave the vents at the
top open at night, even in cold weather, to stop drops of water forming on the roof. Let the
fabric dry completely before you put it away, or it will rot.

I wanted to love this novel. I read the author's first book in a single sitting, and when the
second was announced I ordered it the same day. The setting is wonderful: a salt mine in the
Carpathians in the winter of 1911, with its underground chapel, its blind ponies and its
feuding families of carpenters. The opening chapter, in which a boy is lowered down the shaft
on his birthday, is as good as anything I have read this year. But after a hundred pages the
story loses its way. Characters are introduced with great ceremony and then forgotten. There
is a murder, and for a time it seems that the whole book will turn on it, until the detective
catches a fever and goes home. I also grew tired of the dreams, of which I counted fourteen.
What saves it is the prose. She can describe a tired man taking off his boots so that you feel
the relief in your own feet. And the last scene, when the lamps go out one after another,
almost made me forgive her for the detective. Borrow it from a library, skip the dreams, and
hope that somebody gives her a stern editor next time.

Since the last update, the alarm on my watch goes off an hour early, but only on weekends. I
noticed it first two Saturdays ago and thought I had set it wrongly. On the following weekend
I checked it carefully before going to bed: the alarm was set for eight, the time zone was
correct, and the option called summer time was on. It rang at seven on both days. From Monday
to Friday it rings when it should. I have tried turning the watch off and on again, deleting
the alarm and making a new one, and setting the clock by hand instead of letting the phone do
it. None of these made any difference. My wife has the same model, bought in the same shop,
and hers works perfectly, though she has not yet installed the update. When I change the alarm
from "weekend" to "Saturday and Sunday", picked separately, it rings at eight. So I have a way
round it for now. It seems to me that the ready made groups of days may be using a different
clock from the single ones. If you would like me to try anything else, I am happy to help, as
long as it does not involve getting up at seven.

My dear Beatrice, your letter came on Tuesday with the sketch of the garden folded inside it,
and I have pinned it above the stove where I can see it as I peel potatoes. You ask how we
are. We are well, and cold. The snow has been up to the sills since the new year, and the boys
have dug a tunnel from the back door to the hen house which they charge me a penny to use.
Anton's chest is better. He goes out each morning to feed the sheep and comes in with ice in
his beard, looking like a prophet. I have been reading aloud to them in the evenings, that
long book about the whale which you left here, and though I was sure they would be bored, they
beg for another chapter and have named the ram after the captain. I think of you often in your
city with its trams and lamps. Do you remember how we planned to share a house with a piano in
it? I still mean to, when we are old and nobody needs us. Write soon, and tell me everything,
most of all the things that you believe are too small to tell. Your loving sister, Clara

Good morning, everybody. Can you hear me at the back? Today's subject is the skin, which is
the largest organ you have and the one you think about least until something goes wrong with
it. Spread out flat, the skin of an adult would cover about two square metres, roughly the
size of a single bed. It has three layers. The outer one, the epidermis, is mostly dead, and I
mean that kindly. Its cells are born at the bottom, pushed slowly upward by the ones beneath,
and by the time they reach the surface they are no more than flat scales packed with a tough
protein. You shed tens of thousands of them every minute, and a fair amount of the dust in
this room was once somebody's elbow. Below it lies the dermis, and that is where everything
interesting happens: blood vessels, nerves, sweat glands and the roots of the hairs. Below
that again is a layer of fat, which keeps you warm and softens the blow when you sit down too
hard. For next time, please read chapter six and try the small experiment with the two pins,
preferably on a willing friend. You will be amazed at how poor your back is at counting.

If you have never given a speech at a wedding before, begin by deciding what you will not say.
Leave out former lovers, money, anything that happened in a police station, and any story
which needs more than two minutes of explanation. That will clear the ground. Next, write down
five true things about the person you are speaking for. They should be small and particular.
"She is generous" is not a story, but "she once posted me her own gloves" is. Pick the best
three, and put the funniest in the middle, not at the end, because the end should be warm.
Write the whole speech out in full and read it aloud to somebody who is willing to be bored.
It will be too long; everyone's is. Cut it by a third. On the day, eat something, drink very
little, and hold a card with the names on it, since names are what vanish first. Stand still,
look at the couple, and wait until the room has gone quiet before you start, however long it
takes. Speak more slowly than feels natural. If your voice shakes, let it, for nobody ever
thought less of a person for that. Then raise your glass, say what they should drink to, and
sit down.

Subject: question about the night shift. Hello Mr Mbeki, I hope you don't mind me writing to
you directly, but Sandra said you were the person to ask. I have been on nights in the packing
hall since August and I was told at the time that it would be for three months. It is now the
middle of January. I like the team and I have no complaints about the work itself, but my
mother has been ill and I need to be at home in the evenings to help her with her meals and
her tablets. Would it be possible to move to the early shift from February? I know that there
are others waiting, and I am prepared to take weekends or to train on the new wrapping machine
if that would make it easier. I have my forklift certificate and it is valid until next year.
If there is a form to fill in, please let me know where I can find it, because the one in the
canteen is for holidays only. I could come and see you before my shift any day this week, say
around nine in the evening, or you can ring me on the number below after midday. Thank you
very much for your time. Yours, Grace Adeyemi

Fresh snow brought parts of the capital to a standstill on Thursday, with trams stuck on three
lines and most schools sending their pupils home before lunch. The weather office had forecast
a light dusting, but by nine in the morning almost twenty centimetres had fallen in the
western districts, and more was expected overnight. At the central market, traders swept the
canvas roofs with brooms to stop them giving way. Hospitals reported a steady stream of people
with broken wrists. "It's always the wrists," said a nurse at Saint Anne's, who had walked for
two hours to get to work. "They put out a hand to save themselves." The airport kept one
runway open, though passengers were told to allow plenty of extra time. Not everyone was
unhappy. In the park below the castle, students used trays from the university dining hall as
sledges, and an enterprising man with a flask was selling hot plum juice at the top of the
slope. The city said that all of its eighty ploughs were at work and asked drivers to leave
their cars at home. It promised to review its contract with the private firm that supplies the
salt, which ran out shortly before noon.

This is how we cook rice in my family, and I have never known it to fail. Measure the rice in
a cup, any cup, and tip it into a bowl. Cover it with cold water, swirl it round with your
hand until the water goes cloudy, and pour it away. Do that four or five times. Let the grains
sit in the last water for half an hour while you get on with something else, then drain them
well. In a pan with a tight lid, heat a knob of butter with two cardamom pods and a bay leaf,
and when it begins to foam add the rice and turn it over gently so that every grain is coated.
Now pour in water, one and a half cups for each cup of rice, and a teaspoon of salt. Bring it
up to a fierce boil, stir once, put a folded tea towel under the lid and turn the flame as low
as it will go. Cook it for eleven minutes. Switch off the heat and do not touch it, do not
even look at it, for another ten. When you lift the lid, the rice will stand up by itself.
Loosen it with a fork, never a spoon, and carry it to the table.

The parents' committee of Oak Lane School met on Tuesday in the music room, as the staff room
was being painted. Twelve people came, which is a record. Mrs Haddad opened by thanking
everyone who had worked at the winter fair. It made eight hundred and forty pounds, of which
almost a third came from the cake stall. We decided to spend the money on new library shelves
and on a visit from a storyteller. The head teacher then explained the plan for the
playground. The climbing frame has failed its safety test, and the choice is between mending
it, for about two thousand pounds, or waiting until the autumn to replace it. Opinions were
divided. Mr Costa said that children needed something to climb on now, and that otherwise they
would climb on the bins, as they had been doing. Ms Reilly preferred to wait and get something
that could be used by children in wheelchairs as well. In the end it was agreed to ask the
pupils themselves. School lunches were mentioned, as always, and the head promised to find out
why there had been no fruit on Fridays. Lost property is overflowing again; please come and
take away your coats. The next meeting is on the fifth of May.

Meet the Lantern, a reading lamp that behaves like daylight. Most lamps give off one kind of
light from the moment you switch them on until the moment you go to bed, but your eyes and
your sleep would like something better. In the morning the Lantern is clear and slightly blue,
good for sewing, model building or doing the accounts. As evening comes on, it turns warmer by
degrees, until by ten o'clock it has the glow of a candle. There is nothing to set up and no
account to create. Plug it in, tell it the time with two small wheels on the back, and it will
remember, even if the power is cut. The neck bends in any direction and stays where it is put.
The base is solid beech with a shallow tray for glasses, pencils or a wedding ring. Should you
want plain bright light at midnight, press the top and it will oblige for an hour before going
back to its usual habits. The bulb is made to last fifteen years and can be changed at home by
anybody who can open a jar. Designed by a retired eye nurse and her son, and put together by
hand in a workshop of nine people near Porto.

Tuesday 14th. Lessons began again and I have a new pupil, a boy of seven called Felix who
arrived with a violin twice as big as he ought to have. He told me that he did not want to
learn any tunes, only noises. So we made noises for half an hour: a door, a wasp, a tram going
round the corner, and a very sad cow. His mother waited in the hall and looked worried. I
haven't enjoyed a lesson so much for months. After lunch it was Mrs Voss, who plays the same
waltz each week and never gets past the middle, because that is where her husband used to come
in on the piano. I no longer try to make her finish it. In the evening I went to the quartet
rehearsal in the cold church. Bertrand was late and in a foul mood, the viola had forgotten
her glasses, and for the first hour we sounded like Felix. Then something happened in the slow
movement, I do not know what, and for about three minutes we were all breathing together.
Nobody said anything afterwards. We packed up and went for soup. I am forty eight years old
and I still do not understand what music is.

Paper was first made in China around two thousand years ago, from the bark of mulberry trees,
old rags and worn out fishing nets. The fibres were soaked, beaten to a pulp and stirred into
a vat of water, and a flat screen was dipped in and lifted so that a thin layer of them
settled on it evenly. Pressed and dried in the sun, the layer became a sheet. The method
travelled slowly westward along the trade roads. It had reached Samarkand by the eighth
century, Baghdad soon afterwards and Spain by about 1100, and each place changed it to suit
the plants, the water and the tools that were available. In Europe paper was made almost
entirely from linen rags, and a shortage of rags could bring a mill to a halt. In some
countries it was even forbidden to bury the dead in linen. Only in the middle of the
nineteenth century did inventors find a practical way of making paper from wood, which was
cheap and plentiful. Newspapers multiplied as a result, but the early wood paper contained
acid that turned it yellow and brittle, so that many books printed in 1890 are in a far worse
state today than those printed four centuries earlier.

Nobody tells you about the wind. The guidebook says that the island is mild all year round,
and I suppose it is, but from noon until sunset the air comes off the sea so strongly that
hats, menus and once a small child's kite went past our table at lunch. Once you have learned
to do your sightseeing in the morning, though, it is a paradise. Hire a scooter if you dare,
or take the green minibus, which will stop anywhere if you shout. On the first day we went
round the crater, where the ground is black and warm and steam comes up between the stones.
Old men bury pots of stew there at dawn and dig them up at one o'clock. It tastes of smoke and
cabbage and I had three helpings. The beaches on the south side are sandy, while those on the
north are all boulders, and much emptier. My favourite place was the natural pool below the
chapel, where the waves break over a wall of lava and you float about in a kind of enormous
fizzy bath. Costs: a double room for fifty five, a coffee for one, stew for nine. We stayed
for eight days and I would go back tomorrow.

Detective Inspector Rao disliked greenhouses. It was something to do with the heat, and the
sense that everything in there was quietly drinking. She ducked under a hanging basket and
found Sergeant Mills beside a bench of orchids, writing in his notebook with a stub of pencil.
"Well?" she said. "The gardener found him at six, ma'am. He'd come in to open the windows."
Mills pointed with the pencil. On the brick path lay a watering can, on its side, and next to
it a single brown shoe, neatly laced. There was no body. There had been a body at six o'clock,
the gardener swore to it: an old gentleman in evening dress, stretched out on his back with a
white flower on his chest. By the time he had run to the house and come back with the cook,
there was only the shoe. Rao crouched down. The puddle from the can had almost dried, and
across the edge of it went a track, thin and straight, like the mark of a wheelbarrow. "Where
does that door lead?" she asked. "The orchard, ma'am, then the lane." She stood up and wiped
her forehead. "And who in this house," she said, "owns only one pair of brown shoes?"

I did not learn to drive until I was fifty three, and I should like to say a word in favour of
being a beginner late in life. When you are young, everybody is a beginner at everything, and
so nobody notices. At fifty three you have grown used to being good at what you do, because
you have quietly given up whatever you were bad at. You have arranged the furniture so as
never to bump into it. Then one rainy morning you find yourself in the middle of a roundabout
with the engine dead and a bus hooting behind you, and a calm young woman at your side is
saying, "Clutch, Alan. The other one." It is humiliating, and it is also, once you stop
blushing, extremely funny. I found that I slept better. I grew more patient with my students,
since I had remembered what it was to be told a thing five times and still not be able to do
it. I failed the test twice. The third time, the examiner shook my hand and said that I was
the most careful driver he had ever met, which I don't think was a compliment. I drove
straight to the sea and back, at forty miles an hour.

How to bleed a radiator. If the top of a radiator stays cold while the bottom is warm, there
is air trapped inside it, and you can let it out yourself in a few minutes. Turn the heating
on and let the whole system get hot, so that you can tell which radiators need attention; then
turn it off and wait for about half an hour, as otherwise you may scald yourself. At one end,
near the top, you will see a small square valve. The key for it costs next to nothing from any
hardware shop. Hold an old towel underneath, fit the key over the valve and turn it slowly to
the left, no more than half a turn. You should hear a hiss. That's the air escaping. Keep
still and wait. After a while the hissing will stop and a little water will come out, often
rather dirty, so mind the carpet. Close the valve straight away, firmly but without forcing
it. Do the same in the other rooms, beginning downstairs. When you have finished, look at the
pressure gauge on the boiler, because letting out air can make it drop, and top it up if the
needle has gone below the green part. Switch the heating back on and feel the difference.

We bought this pushchair in the sales, after a good deal of reading, and have used it nearly
every day for seven months, so I think I can give a fair opinion. It is light, about six
kilos, and it folds with one hand, which matters when you have a baby on your hip and the bus
driver is looking at his watch. The wheels cope well with cobbles and wet leaves but not with
sand. Our daughter seems happy in it and usually falls asleep before we reach the corner. The
hood comes right down and has a little window so that you can peep in at her. What annoys me
is the basket. It's far too small, and the opening is blocked by a bar, so that you have to
push things in one by one, and a bag of potatoes will not go in at all. The brake is stiff,
and I've scraped the toes of two pairs of shoes on it. We also had a problem with a squeaking
wheel, but the company sent a new one within three days and did not ask for the receipt. My
sister bought the more expensive model and admits that she envies ours. I would recommend it
to anyone who travels by bus.

The export button on the monthly report page produces a file in which every name with an
accent is damaged. For instance, a customer called José appears with two odd signs in place of
the last letter, and one called Zoë is cut off after the second. Plain names are fine. It
happens in every browser I have tried, and for at least four of my colleagues in the Lyon
office, where, as you might imagine, there are rather a lot of accents. If I open the file in
a simple text editor, the names look right, so I believe that the data itself is good and that
the spreadsheet program is guessing the wrong encoding. The old report page, which was taken
away on the third of the month, did not have this trouble. As a temporary measure we are
opening the file in the editor, copying everything, and pasting it into the sheet, but with
nine hundred rows this is slow, and last week someone pasted it into the wrong column and sent
out the wrong bills. Could you either put the old page back for now, or add a choice of
formats? I'd rate this as urgent for us, because the accounts have to be closed on the last
working day.

Dear editor, I read with interest your article on the decline of the evening bus, but I
believe that you missed the point. You write that fewer people are using it. Of course they
are. In 2015 there were nine buses after seven o'clock, and today there are two, one of which
leaves four minutes before the London train comes in. I have stood on the platform many a time
and watched its lights go round the corner. A service that is impossible to use will not be
used, and it is hardly fair to blame the public for it. I am seventy six and have never owned
a car. My neighbour, who is a cleaner at the college, finishes at half past nine and walks
three miles home along a road without a pavement. Your reporter might like to join her one
evening in December. The company says that it cannot run empty buses, and I understand that.
But has it ever asked us when we need to travel? I have lived here since 1969 and nobody has
asked me. I suggest a simple trial: one bus, at ten past ten, for six months, with the
timetable in large print. I would be on it. Yours faithfully, Enid Marsh

Welcome back. In the first half I described how the printing press spread from Mainz to more
than two hundred towns in barely thirty years. Now for the awkward question: did anyone read
the books? We have to be careful. Perhaps one man in ten could sign his name in those days,
and fewer women, and signing is not the same as reading. Yet reading was also far more
sociable than it is now. One person with a pamphlet in a tavern might reach forty listeners,
and we have court records in which illiterate weavers quote whole pages by heart. So, when we
count readers, we should perhaps be counting ears. There is a second difficulty. The books
that survive in our libraries are the ones that were not used: heavy volumes of law and
theology, in good leather, which sat on a shelf for five centuries. The ones that people
really loved were read to pieces. Almanacs, ballads, cures for toothache, the lives of robbers
and saints, all were printed by the ten thousand, and of many editions we possess a single
torn copy, found in the binding of something else. Keep that in mind for the essay. What is
missing may matter more than what we have.

Moving house with a cat is easier if you plan for the cat first and the furniture second. A
week before the move, leave the carrying basket open in the living room with a blanket and a
few treats inside, so that it becomes part of the scenery. On the day itself, shut the animal
in a small room, the bathroom for example, with its litter tray, water and a large notice on
the door that says "do not open". Load everything else, and collect the cat last. Talk to it
during the journey if that makes you feel better; it will complain in any case. At the other
end, do the same again: one quiet room, with a bed that has not been washed, because smells
are what tell a cat that it is at home. Let it come out when it wishes to, and not before.
Some walk about at once like surveyors, while others spend two days behind the washing
machine. Both are quite normal. Keep it indoors for three weeks at the very least, change the
address on its chip, and don't let it out for the first time on a full stomach. A hungry cat
remembers where the kitchen is. Within a month it will behave as if it had chosen the place.
"""
