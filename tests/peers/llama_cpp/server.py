# SPDX-License-Identifier: Apache-2.0
"""llama.cpp in this process (package xllamacpp), in the settings under which its numbers are nearest to fp32: KV cache
f32, no flash attention, one thread."""
import xllamacpp

LETTER = 65  # the token of a letter in tiny.tokenizer()


class Server:
    def __init__(self, path, context=512):
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.warmup = False
        params.n_ctx = context
        params.n_parallel = 1
        params.verbosity = 0
        params.n_gpu_layers = 0
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        self.server = xllamacpp.Server(params)

    def complete(self, prompt, count, probabilities, bias=()):
        """Greedy tokens behind a text or a list of ids: (text, why it ended, [{id: log probability}])."""
        answer = self.server.handle_completions({
            "prompt": prompt, "max_tokens": count, "temperature": 0, "top_k": 1, "cache_prompt": False,
            "logprobs": probabilities, "logit_bias": [list(pair) for pair in bias]})
        choice = answer["choices"][0]
        steps = [[(top["id"], top["logprob"]) for top in step["top_logprobs"]] for step in choice["logprobs"]["content"]]
        return choice["text"], choice["finish_reason"], steps

    def log_probabilities(self, ids, vocabulary):
        """Log probabilities of all tokens behind ids. They are those before the bias, by which a whole character is
        drawn: without one there is no answer."""
        _, _, steps = self.complete(ids, 1, vocabulary, bias=[(LETTER, 100)])
        values = dict(steps[0])
        if sorted(values) != list(range(vocabulary)):
            raise RuntimeError(f"llama.cpp gave {len(values)} of {vocabulary} log probabilities")
        return [values[i] for i in range(vocabulary)]
