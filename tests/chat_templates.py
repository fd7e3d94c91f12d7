"""Chat templates modelled on well-known ones, in this project's own words. Control tokens are those
of the tests' byte tokenizer. The structure is real: the place of the system prompt, what is
trimmed, what is rejected, and what is rewritten in older turns."""

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Qwen 2.5: a default system prompt.
DEFAULT_SYSTEM = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are kind.<|im_end|>\n{% endif %}"
) + CHATML

# Qwen 3: thoughts are removed from all replies except the latest.
FORGETS_THOUGHTS = (
    "{% for m in messages %}"
    "{% set text = m.content %}"
    "{% if m.role == 'assistant' and '</think>' in text %}"
    "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ text }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)

# Llama 3: everything is trimmed, and the text begins with a control token.
TRIMMED = (
    "<|endoftext|>{% for m in messages %}"
    "<|im_start|>{{ m.role }}\n\n{{ m.content | trim }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n\n{% endif %}"
)

# Gemma 2: no system role, strictly alternating roles, another name for the assistant.
NO_SYSTEM = (
    "<|endoftext|>"
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
    "{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "<|im_start|>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)

# Mistral: the system prompt is part of the first question, and there are no role names.
INSTRUCTION = (
    "{% set ns = namespace(system='') %}"
    "<|endoftext|>{% for m in messages %}"
    "{% if m.role == 'system' %}{% set ns.system = m.content + '\n\n' %}"
    "{% elif m.role == 'user' %}<|im_start|>{{ ns.system }}{{ m.content }}<|im_end|>"
    "{% set ns.system = '' %}"
    "{% else %}{{ m.content }}<|endoftext|>{% endif %}{% endfor %}"
)

# Ministral 3: strictly alternating roles, and no message may be empty.
NO_EMPTY = (
    "<|endoftext|>{% set ns = namespace(n=0) %}{% for m in messages %}"
    "{% if m.role != 'system' %}"
    "{% if (m.role == 'user') != (ns.n % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% set ns.n = ns.n + 1 %}{% endif %}"
    "{% if not m.content.strip() %}{{ raise_exception('a message needs content') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

ALL = {
    "chatml": CHATML,
    "default system": DEFAULT_SYSTEM,
    "forgets thoughts": FORGETS_THOUGHTS,
    "trimmed": TRIMMED,
    "no system": NO_SYSTEM,
    "instruction": INSTRUCTION,
    "no empty": NO_EMPTY,
}
