# SPDX-License-Identifier: Apache-2.0
"""Message lists that the templates of other projects are rendered on."""
TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a city.",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "description": "The city <name> & \"more\""},
            "unit": {"type": "string", "enum": ["c", "f"]}, "days": {"type": "integer"},
            "options": {"type": "object", "required": ["x"], "properties": {
                "x": {"type": ["string", "null"]}, "l": {"type": "array", "items": {"type": "number"}}}}}},
        "return": {"type": "string", "description": "text"}}},
    {"type": "function", "function": {"name": "noop", "description": "Does nothing",
                                      "parameters": {"type": "object", "properties": {}}}}]


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def system(text):
    return {"role": "system", "content": text}


def call(number, name, arguments):
    return {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}


# name: (messages, whether tools are offered)
CHATS = {
    "one message": ([user("Hi <there> & 'you' — ok? \n")], False),
    "system": ([system("Be brief.  "), user("What is 2+2?"), assistant("4"), user(" And 3+3? ")], False),
    "several turns": ([user("a"), assistant("<think>\nhm\n</think>\n\nb"), user("c"), assistant("d"), user("e"),
                       assistant(" f ")], False),
    "tools": ([system("S"), user("Weather in Köln?"),
               {"role": "assistant", "content": "Let me see.", "tool_calls": [call("abcdefghi", "get_weather", {
                   "city": "Köln", "days": 2, "f": 1.5, "n": None, "b": True, "l": [1, "x"], "o": {"k": "v"}})]},
               {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": "12 °C"},
               assistant("12 °C in Köln."), user("thanks")], True),
    "null content": ([user("Go"),
                      {"role": "assistant", "content": None, "reasoning_content": "I should call.", "tool_calls": [
                          call("abcdefghi", "noop", {}), call("ABCDEFGHI", "get_weather", {"city": "X"})]},
                      {"role": "tool", "tool_call_id": "abcdefghi", "name": "noop", "content": "{\"r\": 1}"},
                      {"role": "tool", "tool_call_id": "ABCDEFGHI", "name": "get_weather", "content": "ok"},
                      assistant("done")], True),
    "list content": ([system([{"type": "text", "text": "Sys"}]),
                      user([{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "and?"}]),
                      assistant([{"type": "text", "text": "A cat."}]), user("more")], False),
}
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
