// SPDX-License-Identifier: Apache-2.0
#include "cli/apps/vllm_flags.h"

#include <fmt/format.h>

#include <vector>

namespace hocket::cli {

namespace {

struct VllmFlag {
  const char* flag;
  const char* text;  ///< why it has no effect, or what to give in its place
};

/// Flags without a value that are accepted: a server with them answers the same.
const std::vector<VllmFlag>& flags_without_effect() {
  static const std::vector<VllmFlag> flags = {
      {"--enable-auto-tool-choice", "it is on with a parser"},
      {"--enable-prefix-caching", "it is on"},
      {"--enable-chunked-prefill", "it is on"},
      {"--trust-remote-code", "models run no code of their own"},
      {"--enforce-eager", "there are no CUDA graphs"},
      {"--disable-log-stats", "statistics are at /metrics alone"},
      {"--disable-log-requests", "texts of requests are never logged"},
      {"--no-enable-log-requests", "texts of requests are never logged"},
  };
  return flags;
}

const std::vector<VllmFlag>& replaced_flags() {
  static const std::vector<VllmFlag> flags = {
      {"--tensor-parallel-size", "--set plan.tp=N"},
      {"-tp", "--set plan.tp=N"},
      {"--pipeline-parallel-size", "--set plan.pp=N"},
      {"-pp", "--set plan.pp=N"},
      {"--data-parallel-size", "--set plan.dp=N"},
      {"-dp", "--set plan.dp=N"},
      {"--distributed-executor-backend", "hocket launch -n N serve MODEL, for ranks as processes"},
      {"--gpu-memory-utilization", "--kv-cache-memory BYTES"},
      {"--kv-cache-memory-bytes", "--kv-cache-memory BYTES"},
      {"--override-generation-config", "the fields of a request, or --generation-config vllm"},
      {"--seed", "the field seed of a request"},
      {"--quantization", "a GGUF file as MODEL"},
      {"-q", "a GGUF file as MODEL"},
      {"--load-format", "nothing: the files of MODEL show their format"},
      {"--download-dir", "hf download NAME, then MODEL is found in its cache"},
      {"--revision", "hf download NAME --revision R, then its folder as MODEL"},
      {"--hf-token", "hf download NAME --token T, then NAME as MODEL"},
      {"--hf-overrides", "a folder with a changed config.json as MODEL"},
      {"--tokenizer-mode", "--tokenizer FILE"},
      {"--enable-lora", "--adapter DIR, which is merged into MODEL"},
      {"--lora-modules", "--adapter DIR, which is merged into MODEL"},
      {"--enable-reasoning", "--reasoning-parser think"},
      {"--chat-template-content-format", "nothing: the template shows which one it reads"},
      {"--disable-uvicorn-access-log", "--disable-access-log"},
      {"--uvicorn-log-level", "--disable-access-log"},
      {"--ssl-keyfile", "a proxy with TLS before the server"},
      {"--ssl-certfile", "a proxy with TLS before the server"},
      {"--root-path", "a proxy that takes the path away"},
      {"--scheduling-policy", "the field priority of a request, which always counts"},
      {"--block-size", "nothing: a page of the KV cache has 32 tokens"},
      {"--kv-cache-dtype", "--dtype, the type of the KV cache, too"},
      {"--swap-space", "nothing: a text that is put back is computed again"},
      {"--cpu-offload-gb", "--set plan.pp=N or plan.tp=N, over more ranks"},
      {"--task", "nothing: every model generates texts"},
      {"--runner", "nothing: every model generates texts"},
  };
  return flags;
}

}  // namespace

void add_vllm_flags(Args& args) {
  static bool unused = false;
  for (const VllmFlag& flag : flags_without_effect()) {
    args.flag(flag.flag, &unused,
              fmt::format("accepted for vLLM's command lines, without effect: {}", flag.text));
  }
  for (const VllmFlag& flag : replaced_flags()) {
    args.foreign(flag.flag, fmt::format("is a flag of vLLM; the same here: {}", flag.text));
  }
}

std::string vllm_flags_page() {
  std::string page =
      "\n# Flags of vLLM's server\n\n"
      "Flags with the same name and meaning are in [cli.md](cli.md#hocket-serve). Of the others "
      "`hocket serve` accepts those\n"
      "without effect, and refuses the rest with the text of this table.\n\n"
      "| vLLM | hocket serve |\n|---|---|\n";
  for (const VllmFlag& flag : flags_without_effect()) {
    page += fmt::format("| `{}` | accepted, without effect: {} |\n", flag.flag, flag.text);
  }
  for (const VllmFlag& flag : replaced_flags()) {
    page += fmt::format("| `{}` | {} |\n", flag.flag, flag.text);
  }
  return page;
}

}  // namespace hocket::cli
