// SPDX-License-Identifier: Apache-2.0
#include "data/tokenizer/gguf_kinds.h"

#include "base/text.h"
#include "data/tokenizer/tokenizer_spec.h"

namespace hocket::data::gguf_kinds {
namespace {

constexpr const char* kQwen35Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kGpt4oPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepseekWords =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

}  // namespace

const char* const kDigitsPattern =
    R"('(?:[sdmt]|ll|ve|re)|\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+)";
const char* const kGpt2Spelled =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

const std::vector<Pretokenizer>& pretokenizers() {
  static const std::vector<Pretokenizer> list = {
      {{"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4",
        "gigachat", "a.x-4.0", "mellum", "modern-bert", "jina-es", "jina-de", "jina-v2-es",
        "jina-v2-de"},
       {kGpt2Pattern}},
      {{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b",
        "mellum2"},
       {kDigitsPattern}},
      {{"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
        "jina-v5-nano"},
       {kLlama3Pattern},
       /*ignore_merges=*/true,
       /*nfc=*/false,
       /*adds_bos=*/true},
      {{"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"}, {kLlama3Pattern}},
      {{"qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"},
       {kQwen2Pattern},
       /*ignore_merges=*/false,
       /*nfc=*/true},
      {{"stablelm2", "hunyuan", "solar-open", "grok-2"}, {kQwen2Pattern}},
      {{"qwen35"}, {kQwen35Pattern}, /*ignore_merges=*/false, /*nfc=*/true},
      {{"deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"},
       {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", kDeepseekWords}},
      {{"deepseek-coder"},
       {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+", R"(\p{N})"}},
      {{"gpt-4o", "llama4", "kanana2", "minimax-m2"}, {kGpt4oPattern}},
      {{"tekken"},
       {kTekkenPattern},
       /*ignore_merges=*/true,
       /*nfc=*/false,
       /*adds_bos=*/true}};
  return list;
}

std::string pretokenizer_names() {
  std::vector<std::string> names;
  for (const Pretokenizer& each : pretokenizers()) {
    names.emplace_back(each.names[0]);
  }
  return join(names, ", ");
}

}  // namespace hocket::data::gguf_kinds
