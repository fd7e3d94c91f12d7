"""Models of each reply format, with a scripted reply: `Scripted` by name."""

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
SEED = Scripted(
    reply_templates.SEED,
    ("<seed:bos>", "<seed:eos>", "<seed:think>", "</seed:think>"),
    "<seed:think>Hm, duck?</seed:think>Yes!<seed:eos>",
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


def tagged(opens: str, closes: str, *, as_tokens: bool = True) -> Scripted:
    reply = f"{opens}Hm, duck?{closes}\n\nYes!<|im_end|>"
    tokens = (opens, closes) if as_tokens else ()
    return Scripted(as_it_is(opens), (), reply, plain=tokens)


FORMATS = {
    "harmony": HARMONY,
    "gemma": GEMMA,
    "mistral": MISTRAL,
    "seed": SEED,
    "cohere": COHERE,
    "deepseek": DEEPSEEK,
    "kimi": KIMI,
    "solar": SOLAR,
    "qwen": QWEN,
    "thinking": tagged("<thinking>", "</thinking>"),
    "longcat": LONGCAT,
    "thought_start": tagged("<|thought_start|>", "<|thought_end|>"),
    "think:start": SOLAR_2,
    "text": tagged("◁think▷", "◁/think▷", as_tokens=False),
}
# Those whose template leaves the thoughts out of earlier turns.
FORGETFUL = {"harmony", "gemma", "cohere", "deepseek", "kimi", "solar", "qwen", "longcat"}
