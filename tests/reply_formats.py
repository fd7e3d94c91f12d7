"""Models of each reply format with a scripted reply: `Scripted` by name."""

from mlxchat.text import reply_format
from tests import chat_templates, reply_templates
from tests.reply_templates import as_it_is
from tests.scripted_model import Scripted

HARMONY = Scripted(
    reply_templates.HARMONY,
    ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"),
    "<|channel|>analysis<|message|>Hm, duck?<|end|>"
    "<|start|>assistant<|channel|>final<|message|>Yes!<|return|>",
)
GEMMA = Scripted(
    reply_templates.GEMMA,
    ("<bos>", "<|turn>", "<turn|>", "<|channel>", "<channel|>", "<|think|>"),
    "<|channel>thought\nHm, duck?<channel|>Yes!<turn|>",
)
MISTRAL = Scripted(
    reply_templates.MISTRAL,
    (
        *("<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
        *("[THINK]", "[/THINK]"),
    ),
    "[THINK]Hm, duck?[/THINK]Yes!</s>",
)
COHERE = Scripted(
    reply_templates.COHERE,
    (
        *("<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        *("<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"),
    ),
    "<|START_THINKING|>Hm, duck?<|END_THINKING|>"
    "<|START_RESPONSE|>Yes!<|END_RESPONSE|><|END_OF_TURN_TOKEN|>",
    plain=("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)
DEEPSEEK = Scripted(
    reply_templates.DEEPSEEK,
    ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"),
    "Hm, duck?</think>\n\nYes!<｜end▁of▁sentence｜>",
)
KIMI = Scripted(
    reply_templates.KIMI,
    ("<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>", "<|im_end|>"),
    "<think>Hm, duck?</think>Yes!<|im_end|>",
)
SOLAR = Scripted(
    reply_templates.SOLAR,
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


LONGCAT = Scripted(
    reply_templates.LONGCAT,
    ("<longcat_system>", "<longcat_user>", "<longcat_assistant>", "</longcat_s>"),
    "Hm, duck?\n</longcat_think>\nYes!</longcat_s>",
    thought="Hm, duck?\n",
    plain=("<longcat_think>", "</longcat_think>"),
)
SOLAR_2 = Scripted(
    reply_templates.SOLAR_2,
    ("<|im:start|>", "<|im:content|>", "<|im:end|>", "<|think:start|>", "<|think:end|>"),
    "Hm, duck?<|think:end|>Yes!<|im:end|>",
)

KIMI_VL = Scripted(
    reply_templates.KIMI_VL,
    KIMI.control,
    "◁think▷Hm, duck?◁/think▷\n\nYes!<|im_end|>",
)
XTML = Scripted(
    reply_templates.XTML,
    ("<|open|>", "<|sep|>", "<|close|>", "<|end_of_msg|>"),
    "Hm, duck?<|close|>think<|sep|><|open|>response<|sep|>Yes!<|close|>response<|sep|>"
    "<|close|>message<|sep|><|end_of_msg|>",
)
MINIMAX = Scripted(
    reply_templates.MINIMAX,
    ("]~!b[", "]~b]", "[e~["),
    "<mm:think>Hm, duck?</mm:think>Yes![e~[",
    plain=("<mm:think>", "</mm:think>"),
)
MUSE = Scripted(
    reply_templates.MUSE,
    ("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
    " to=self<|message|>Hm, duck?<|eom|><|start|>assistant to=user<|message|>Yes!<|eot|>",
)


# All formats with tags, for a template that names the opening one and leaves replies unchanged: the
# reply opens the thought, or the prompt.
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
    "think:start": SOLAR_2,
    "kimi vl": KIMI_VL,
    "xtml": XTML,
}
# Formats whose template omits the thoughts in earlier turns.
FORGETFUL = {"harmony", "gemma", "cohere", "deepseek", "kimi", "solar", "qwen", "longcat"}
