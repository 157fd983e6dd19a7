"""Random conversations for chat templates: with and without system messages, thoughts, tool calls and their results."""

import random

WORDS = ["Hello", "the", " answer ", "is", "42", "\n", "\n\n", "  ", "é", "你好", "🙂", "\"quoted\"", "it's", "<b>", "&", "\\n", "{x}", "%d", "\t",
         "<think>", "</think>", "[INST]", "{{ x }}", "/no_think", "a\u00a0b", "\u2028", "Straße", "end."]
NAMES = ["get_weather", "search", "add"]
VALUES = [1, -3, 2.5, 1e20, 1e-7, True, False, None, "Zürich", "a\nb", [], {}, [1, "x", [None]], {"k": [1.0, {"z": "é"}]}]


def text(rng, most=8):
    return "".join(rng.choice(WORDS) + rng.choice(["", " "]) for _ in range(rng.randint(0, most)))


def tool(rng):
    name = rng.choice(NAMES)
    properties = {key: {"type": rng.choice(["string", "number"]), "description": text(rng, 4)} for key in rng.sample(["city", "unit", "x"], rng.randint(0, 3))}
    return {"type": "function", "function": {"name": name, "description": text(rng, 6), "parameters": {
        "type": "object", "properties": properties, "required": list(properties)[:1]}}}


def call(rng):
    arguments = {key: rng.choice(VALUES) for key in rng.sample(["city", "unit", "b", "a"], rng.randint(0, 4))}
    return {"id": "".join(rng.choice("abc123XYZ") for _ in range(9)), "type": "function", "function": {"name": rng.choice(NAMES), "arguments": arguments}}


def turn(rng, style):
    """The messages of one question: an answer, or tool calls, their results and an answer."""
    messages = [{"role": "user", "content": text(rng)}]
    if style == "tools" and rng.random() < 0.5:
        calls = [call(rng) for _ in range(rng.choice([1, 1, 2]))]
        messages.append({"role": "assistant", "content": rng.choice([None, ""]), "tool_calls": calls})
        messages += [{"role": "tool", "name": each["function"]["name"], "tool_call_id": each["id"], "content": text(rng, 3)} for each in calls]
    answer = {"role": "assistant", "content": text(rng)}
    if style == "thoughts":
        if rng.random() < 0.5:
            answer["reasoning_content"] = text(rng)
        else:
            answer["content"] = "<think>\n" + text(rng) + "\n</think>\n\n" + answer["content"]
    return messages + [answer]


def conversation(rng, style):
    messages = [{"role": "system", "content": text(rng)}] if rng.random() < 0.5 else []
    for _ in range(rng.randint(1, 4)):
        messages += turn(rng, style)
    if rng.random() < 0.5 and messages[-1]["role"] == "assistant":
        messages.pop()
    if style == "parts":
        for message in messages:
            if rng.random() < 0.5:
                message["content"] = [{"type": "text", "text": message["content"]}] + [{"type": "image"}] * rng.randint(0, 1)
    if rng.random() < 0.1:
        rng.shuffle(messages)
    return messages


def variables(rng, style):
    """What a template sees: messages, and what else a caller gives."""
    given = {"messages": conversation(rng, style), "add_generation_prompt": rng.random() < 0.5}
    given["tools"] = [tool(rng) for _ in range(rng.randint(1, 3))] if style == "tools" and rng.random() < 0.7 else None
    if rng.random() < 0.3:
        given["enable_thinking"] = rng.random() < 0.5
    if style == "tools" and rng.random() < 0.3:
        given["tools_in_user_message"] = rng.random() < 0.5
    return given


def examples(seed, count):
    rng = random.Random(seed)
    return [variables(rng, rng.choice(["plain", "plain", "tools", "thoughts", "parts"])) for _ in range(count)]
