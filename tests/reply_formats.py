"""Models of each reply format, with a scripted reply: `Scripted` by name.

The chat templates are of models that think, in this project's own words, with their control tokens.
They render system texts, questions and replies with thoughts like the models' own templates, but
without tools, and with long preambles shortened.
"""

from mlxchat.text import reply_format
from tests import chat_templates
from tests.scripted_model import Scripted

# gpt-oss: thoughts in a field, omitted at inference; content with channels is rejected.
HARMONY = Scripted(
    "{% set effort = reasoning_effort if reasoning_effort is defined else 'medium' %}"
    "<|start|>system<|message|>Reasoning: {{ effort }}<|end|>"
    "{% for m in messages %}"
    "{% if '<|channel|>' in m.content %}{{ raise_exception('no channels in content') }}{% endif %}"
    "{% if m.role == 'system' %}"
    "<|start|>developer<|message|># Instructions\n\n{{ m.content }}\n\n<|end|>"
    "{% elif m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>"
    "{% elif loop.last and not add_generation_prompt %}"
    "{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>"
    "{% endif %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|return|>"
    "{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}",
    ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"),
    "<|channel|>analysis<|message|>Hm, duck?<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Yes!<|return|>",
)

# Gemma 4: thoughts are not content; without `enable_thinking` the prompt ends with an empty one.
GEMMA = Scripted(
    "{% set thinks = enable_thinking is defined and enable_thinking %}"
    "<bos>{% if thinks or messages[0].role == 'system' %}<|turn>system\n"
    "{% if thinks %}<|think|>{% endif %}"
    "{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% endif %}<turn|>\n"
    "{% endif %}"
    "{% for m in messages if m.role != 'system' %}"
    "<|turn>{{ 'model' if m.role == 'assistant' else 'user' }}\n"
    "{% if m.role == 'assistant' %}{% set ns = namespace(text='') %}"
    "{% for piece in m.content.split('<channel|>') %}"
    "{% set ns.text = ns.text + piece.split('<|channel>')[0] %}{% endfor %}"
    "{{ ns.text | trim }}{% else %}{{ m.content | trim }}{% endif %}<turn|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn>model\n"
    "{% if not thinks %}<|channel>thought\n<channel|>{% endif %}{% endif %}",
    ("<bos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>"),
    "<|channel>thought\nHm, duck?<channel|>Yes!<turn|>",
)

# Ministral: reply content is rendered unchanged, or as separate thought and text; roles alternate.
MISTRAL = Scripted(
    "<s>{% set ns = namespace(n=0) %}{% for m in messages %}"
    "{% if m.role == 'system' %}[SYSTEM_PROMPT]{{ m.content }}[/SYSTEM_PROMPT]"
    "{% else %}{% if (m.role == 'user') != (ns.n % 2 == 0) %}"
    "{{ raise_exception('roles take turns') }}{% endif %}{% set ns.n = ns.n + 1 %}"
    "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif not m.content %}{{ raise_exception('no empty replies') }}"
    "{% elif m.content is string %}{{ m.content }}</s>"
    "{% else %}[THINK]{{ m.content[0].thinking }}[/THINK]{{ m.content[1].text }}</s>{% endif %}"
    "{% endif %}{% endfor %}",
    (
        *("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        *("[THINK]", "[/THINK]"),
    ),
    "[THINK]Hm, duck?[/THINK]Yes!</s>",
)

# Command R7B: the template encloses answers in markers and omits thoughts.
COHERE = Scripted(
    "<BOS_TOKEN>{% for m in messages %}"
    "<|START_OF_TURN_TOKEN|>"
    "{% if m.role == 'system' %}<|SYSTEM_TOKEN|>{{ m.content }}"
    "{% elif m.role == 'user' %}<|USER_TOKEN|>{{ m.content }}"
    "{% else %}<|CHATBOT_TOKEN|><|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>{% endif %}"
    "<|END_OF_TURN_TOKEN|>{% endfor %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    (
        *("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        *("<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"),
    ),
    "<|START_THINKING|>Hm, duck?<|END_THINKING|>"
    "<|START_RESPONSE|>Yes!<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
    plain=("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)

# DeepSeek R1: the prompt opens the thought; earlier replies have none.
DEEPSEEK = Scripted(
    "<｜begin▁of▁sentence｜>{% for m in messages %}"
    "{% if m.role == 'system' %}{{ m.content }}"
    "{% elif m.role == 'user' %}<｜User｜>{{ m.content }}"
    "{% else %}<｜Assistant｜>{{ m.content.split('</think>')[-1] }}<｜end▁of▁sentence｜>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}",
    ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
    "Hm, duck?</think>\n\nYes!<｜end▁of▁sentence｜>",
)

# Kimi K2 Thinking: an empty thought precedes each earlier answer, whatever its content.
KIMI = Scripted(
    "{% for m in messages %}"
    "<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>"
    "{% if m.role == 'assistant' %}<think></think>{% endif %}{{ m.content }}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}",
    ("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>"),
    "<think>Hm, duck?</think>Yes!<|im_end|>",
)

# Solar Open: thought and answer are separate messages with the same ending.
SOLAR = Scripted(
    "{% for m in messages %}"
    "{% if m.reasoning and loop.last %}"
    "<|begin|>assistant<|think|>{{ m.reasoning }}<|end|>{% endif %}"
    "<|begin|>{{ m.role }}<|content|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|begin|>assistant{% endif %}",
    ("<|begin|>", "<|end|>", "<|think|>", "<|content|>"),
    "<|think|>Hm, duck?<|end|><|begin|>assistant<|content|>Yes!<|end|>",
)

QWEN = Scripted(
    chat_templates.FORGETS_THOUGHTS,
    (),
    "<think>\nHm, duck?\n</think>\n\nYes!<|im_end|>",
    thought="\nHm, duck?\n",
    ends=("<|endoftext|>",),
)

# LongCat-Flash-Thinking: the last question turns thinking on; earlier ones come on request.
LONGCAT = Scripted(
    "{% for m in messages %}"
    "{% if m.role == 'system' %}<longcat_system>{{ m.content }}"
    "{% elif m.role == 'user' %}<longcat_user>{{ m.content }}"
    "{% else %}<longcat_assistant>"
    "{% if save_history_reasoning_content is defined and m.reasoning_content %}"
    "<longcat_think>\n{{ m.reasoning_content }}\n</longcat_think>\n{% endif %}"
    "{{ m.content }}</longcat_s>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}"
    "{% if enable_thinking is not defined or enable_thinking %} /think_on "
    "<longcat_assistant><longcat_think>\n{% else %}<longcat_assistant>{% endif %}{% endif %}",
    ("<longcat_system>", "<longcat_user>", "<longcat_assistant>", "</longcat_s>"),
    "Hm, duck?\n</longcat_think>\nYes!</longcat_s>",
    thought="Hm, duck?\n",
    plain=("<longcat_think>", "</longcat_think>"),
)

# Kimi-VL-Thinking, like Moonlight: a default system text. Template and vocabulary lack its tags.
KIMI_VL = Scripted(
    "{% if messages[0].role != 'system' %}"
    "<|im_system|>system<|im_middle|>You are kind.<|im_end|>{% endif %}"
    "{% for m in messages %}"
    "<|im_{{ m.role }}|>{{ m.role }}<|im_middle|>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}",
    KIMI.control,
    "◁think▷Hm, duck?◁/think▷\n\nYes!<|im_end|>",
)

# Kimi K3: elements with attributes; thoughts precede answers, opened unless `thinking` is false.
XTML = Scripted(
    "{% set thinks = thinking is not defined or thinking %}"
    '{% if thinks %}<|open|>message role="system" type="thinking-effort"<|sep|>'
    "{{ thinking_effort if thinking_effort is defined else 'max' }}"
    "<|close|>message<|sep|><|end_of_msg|>{% endif %}"
    '{% for m in messages %}<|open|>message role="{{ m.role }}"<|sep|>'
    "{% if m.role == 'assistant' %}"
    "{% if thinks %}<|open|>think<|sep|>{{ m.reasoning_content }}<|close|>think<|sep|>{% endif %}"
    "<|open|>response<|sep|>{{ m.content }}<|close|>response<|sep|>"
    "{% else %}{{ m.content }}{% endif %}<|close|>message<|sep|><|end_of_msg|>{% endfor %}"
    '{% if add_generation_prompt %}<|open|>message role="assistant"<|sep|>'
    "<|open|>{{ 'think' if thinks else 'response' }}<|sep|>{% endif %}",
    ("<|open|>", "<|sep|>", "<|close|>", "<|end_of_msg|>"),
    "Hm, duck?<|close|>think<|sep|><|open|>response<|sep|>Yes!<|close|>response<|sep|>"
    "<|close|>message<|sep|><|end_of_msg|>",
)

# MiniMax M3: each earlier reply has its thought, or just the closing tag.
MINIMAX = Scripted(
    "{% set opens, closes = '<mm:think>', '</mm:think>' %}"
    "]~!b[{% for m in messages %}]~b]{{ 'ai' if m.role == 'assistant' else m.role }}\n"
    "{% if m.role == 'assistant' %}{% set text, thought = m.content, '' %}"
    "{% if m.reasoning_content %}{% set thought = m.reasoning_content %}"
    "{% elif closes in text %}"
    "{% set thought = text.split(closes)[0].split(opens)[-1] %}"
    "{% set text = text.split(closes)[-1].strip('\n') %}{% endif %}"
    "{{ opens ~ thought ~ closes if thought else closes }}{{ text }}"
    "{% else %}{{ m.content }}{% endif %}[e~[\n{% endfor %}"
    "{% if add_generation_prompt %}]~b]ai\n{% endif %}",
    ("]~!b[", "]~b]", "[e~["),
    "<mm:think>Hm, duck?</mm:think>Yes![e~[",
    plain=("<mm:think>", "</mm:think>"),
)

# Muse Spark: the recipient in a message's header says whether it is a thought.
MUSE = Scripted(
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}"
    "{% if m.reasoning_content %}"
    "<|start|>assistant to=self<|message|>{{ m.reasoning_content }}<|eom|>{% endif %}"
    "<|start|>assistant to=user<|message|>{{ m.content }}<|eot|>"
    "{% else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|eot|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
    ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
    " to=self<|message|>Hm, duck?<|eom|><|start|>assistant to=user<|message|>Yes!<|eot|>",
)


def as_it_is(opens: str, begun: str = "") -> str:
    """Replies stay unchanged; the preamble names the tag. The prompt ends with what is `begun`."""
    return (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        f"{{% if think_first is defined %}}{opens}{{% endif %}}"
        f"{{% if add_generation_prompt %}}<|im_start|>assistant\n{begun}{{% endif %}}"
    )


# All formats with tags, for a template that leaves replies unchanged: reply or prompt opens it.
TAGGED = {
    f"{each.opens} {'opened' if begun else ''}": Scripted(
        as_it_is(each.opens, begun),
        (),
        f"{each.opens}{each.label}Hm, duck?{each.closes}\n\nYes!<|im_end|>".removeprefix(begun),
        plain=(each.opens, each.closes),
    )
    for each in reply_format.FORMATS
    if not each.has_channels
    for begun in ("", each.opens + each.label)
}

FORMATS = {
    "harmony": HARMONY,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "cohere": COHERE,
    "deepseek": DEEPSEEK,
    "kimi": KIMI,
    "solar": SOLAR,
    "qwen": QWEN,
    "text": Scripted(as_it_is("<thinking>"), (), "<thinking>Hm, duck?</thinking>Yes!<|im_end|>"),
    "longcat": LONGCAT,
    "minimax": MINIMAX,
    "muse": MUSE,
    "kimi vl": KIMI_VL,
    "xtml": XTML,
}
# Formats whose template omits the thoughts in earlier turns.
FORGETFUL = (HARMONY, GEMMA, COHERE, DEEPSEEK, KIMI, SOLAR, QWEN, LONGCAT)
