# SPDX-License-Identifier: Apache-2.0
"""A model that recites: behind a title it writes the title's text, token by token, whatever the sampling.

A token's embedding is a unit vector of its own, attention and feed-forward layers add nothing, and the head has one large
weight in each column: that of the token which follows. The pieces of texts are tokens of their own, beside all bytes."""
import array
import json
import os
import struct
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "llama_cpp"))
import tiny  # noqa: E402

END = "<|im_end|>"
PIECE = 4      # most characters of a piece; those of one text must differ from those of all others
WEIGHT = 40.0  # nothing else is drawn: exp(-WEIGHT) is the probability of another token


def pieces_of(text, taken):
    """Cuts a text into pieces that are no tokens yet, as short as that allows."""
    out, at = [], 0
    while at < len(text):
        end = at + PIECE
        while text[at:end] in taken and end < len(text):
            end += 1
        piece = text[at:end]
        if piece in taken or (end < len(text) and len(text) - end < 2):
            piece = text[at:]
        if piece in taken:
            raise ValueError(f"{piece!r} ends two texts")
        taken.add(piece)
        out.append(piece)
        at += len(piece)
    return out


def write(folder, texts):
    """Writes the model: texts by title. A chat's answer is the text that its last message is the title of."""
    tokenizer = tiny.tokenizer()
    tokens = {added["content"]: added["id"] for added in tokenizer["added_tokens"]}
    followers = {}
    end, taken = tokens[END], set()

    def add(text):
        tokens[text] = 256 + len(tokens)
        tokenizer["added_tokens"].append({"id": tokens[text], "content": text, "single_word": False, "lstrip": False,
                                          "rstrip": False, "normalized": False, "special": False})
        return tokens[text]

    for title, text in texts.items():
        last = add(title)
        for piece in pieces_of(text, taken):
            followers[last] = last = add(piece)
        followers[last] = end
    size = -(-(256 + len(tokens)) // 8) * 8
    # The norm before the head multiplies a unit vector by the root of its size.
    scale = WEIGHT / size ** 0.5
    zero, ones = (0.0,), (1.0,)
    shapes = {"model.embed_tokens.weight": [size, size], "lm_head.weight": [size, size], "model.norm.weight": [size]}
    layer = "model.layers.0."
    shapes.update({f"{layer}{name}.weight": [size] for name in ("input_layernorm", "post_attention_layernorm")})
    shapes.update({f"{layer}self_attn.{name}_proj.weight": [size, size] for name in "qkvo"})
    shapes.update({f"{layer}mlp.{name}.weight": [8, size] for name in ("gate_proj", "up_proj")})
    shapes[f"{layer}mlp.down_proj.weight"] = [size, 8]
    header, data = {}, b""
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        values = array.array("f", (ones if "norm" in name else zero) * count)
        if "embed_tokens" in name:
            for token in range(size):
                values[token * size + token] = 1.0
        elif "lm_head" in name:
            for token in range(size):
                values[followers.get(token, end) * size + token] = scale
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": size, "intermediate_size": 8,
              "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": size, "vocab_size": size,
              "max_position_embeddings": 512, "rms_norm_eps": 1e-9, "rope_theta": 10000.0, "hidden_act": "silu",
              "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": tokens["<|endoftext|>"],
              "eos_token_id": end}
    template = ("{% for tool in tools or [] %}{{ tool.function.name }}\n{% endfor %}{% for message in messages %}"
                "<|im_start|>{{ message.role }}\n{{ message.content }}{% endfor %}")
    files = {"config.json": config, "tokenizer.json": tokenizer,
             "tokenizer_config.json": {"eos_token": END, "tokenizer_class": "PreTrainedTokenizerFast",
                                       "chat_template": template}}
    for name, value in files.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
            json.dump(value, f)
