// SPDX-License-Identifier: Apache-2.0
#include "serve/bench/bench_load.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/text.h"
#include "base/utf8.h"

namespace hocket::serve {

namespace {

/// Attempts to find a text of an exact number of tokens.
constexpr int kLengthTries = 16;

/// Draws from a gamma distribution of scale 1 (Marsaglia and Tsang, "A simple method for generating
/// gamma variables", TOMS 2000).
double gamma_draw(double shape, Rng* rng) {
  if (shape < 1) {
    const double boost = std::pow(1 - rng->uniform(), 1 / shape);
    return gamma_draw(shape + 1, rng) * boost;
  }
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = rng->normal();
    const double v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1 - rng->uniform()) < x * x / 2 + d - d * v + d * std::log(v)) {
      return d * v;
    }
  }
}

/// Ids whose bytes are text by themselves, and that no text has a special meaning by.
std::vector<int32_t> plain_tokens(const data::Tokenizer& tokenizer) {
  std::vector<bool> is_added(static_cast<size_t>(tokenizer.vocab_size()));
  for (const data::AddedToken& added : tokenizer.spec().added) {
    is_added[static_cast<size_t>(added.id)] = true;
  }
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    const bool is_printable = std::all_of(bytes.begin(), bytes.end(), [](char c) {
      return static_cast<unsigned char>(c) >= ' ' && c != 0x7f;
    });
    if (!is_added[static_cast<size_t>(id)] && !bytes.empty() && is_printable && is_utf8(bytes)) {
      ids.push_back(id);
    }
  }
  if (ids.empty()) fail("bench serve", "the tokenizer has no token that is text by itself");
  return ids;
}

/// Makes texts of random tokens.
class RandomText {
 public:
  RandomText(const data::Tokenizer& tokenizer, uint64_t seed)
      : tokenizer_(tokenizer), encoder_(tokenizer), plain_(plain_tokens(tokenizer)), rng_(seed) {}

  int64_t length(double mean, double ratio) {
    const auto least = static_cast<int64_t>(std::floor(mean * (1 - ratio)));
    const auto most = static_cast<int64_t>(std::ceil(mean * (1 + ratio)));
    return rng_.between(std::max<int64_t>(1, least), std::max<int64_t>(1, most));
  }

  /// Returns `prefix` and more text, `tokens` tokens in all, or as near to it as was found.
  BenchPrompt make(const std::string& prefix, int64_t tokens) {
    BenchPrompt best;
    std::vector<int32_t> ids = encode(prefix);
    std::string text = prefix;
    for (int attempt = 0; attempt < kLengthTries; ++attempt) {
      const int64_t missing = tokens - std::ssize(ids);
      if (missing > 0) {
        for (int64_t i = 0; i < missing; ++i) {
          text += tokenizer_.token_bytes(plain_[rng_.below(plain_.size())]);
        }
      } else if (missing < 0) {
        ids.resize(static_cast<size_t>(tokens));
        text = tokenizer_.decode(ids);
        text.resize(utf8_valid_until(text, 0));
        if (!text.starts_with(prefix)) {
          text = prefix;
        }
      }
      ids = encode(text);
      if (best.text.empty() ||
          std::abs(std::ssize(ids) - tokens) < std::abs(best.tokens - tokens)) {
        best = {text, std::ssize(ids), 0};
      }
      if (best.tokens == tokens) break;
    }
    return best;
  }

 private:
  std::vector<int32_t> encode(const std::string& text) {
    std::vector<int32_t> ids;
    encoder_.encode(text, &ids);
    return ids;
  }

  const data::Tokenizer& tokenizer_;
  data::Encoder encoder_;
  const std::vector<int32_t> plain_;
  Rng rng_;
};

}  // namespace

std::vector<double> arrival_times(int64_t count, std::optional<double> rate, double burstiness,
                                  uint64_t seed) {
  std::vector<double> times(static_cast<size_t>(count));
  if (!rate) return times;
  Rng rng(seed);
  double time = 0;
  for (double& at : times) {
    at = time += gamma_draw(burstiness, &rng);
  }
  const double scale = time > 0 ? static_cast<double>(count) / *rate / time : 0;
  for (double& at : times) {
    at *= scale;
  }
  return times;
}

std::vector<BenchPrompt> random_prompts(const RandomPrompts& options,
                                        const data::Tokenizer& tokenizer) {
  RandomText random(tokenizer, options.seed);
  const std::string prefix = options.prefix_len > 0 ? random.make("", options.prefix_len).text : "";
  std::vector<BenchPrompt> prompts;
  for (int64_t i = 0; i < options.count; ++i) {
    const int64_t input =
        random.length(static_cast<double>(options.input_len), options.range_ratio);
    const int64_t output =
        random.length(static_cast<double>(options.output_len), options.range_ratio);
    prompts.push_back(random.make(prefix, options.prefix_len + input));
    prompts.back().output_tokens = output;
  }
  return prompts;
}

std::vector<BenchPrompt> file_prompts(const std::string& path, int64_t count, int64_t output_len,
                                      const data::Tokenizer* tokenizer) {
  std::vector<BenchPrompt> all;
  int64_t number = 0;
  for (const std::string& line : split(read_file(path), '\n')) {
    ++number;
    if (trim(line).empty()) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    const nlohmann::json json = parse_json(line, where);
    const JsonView view(json, where);
    BenchPrompt prompt{view.get_string("prompt"), 0, view.get_int("output_tokens", output_len)};
    if (prompt.output_tokens < 1) {
      view.fail("asks for no token; expected 1 or more");
    }
    if (tokenizer) {
      prompt.tokens = std::ssize(tokenizer->encode(prompt.text));
    }
    all.push_back(std::move(prompt));
    if (std::ssize(all) == count) break;
  }
  if (all.empty()) fail(path, "has no prompt");
  for (size_t i = 0; std::ssize(all) < count; ++i) {
    all.push_back(BenchPrompt(all[i]));
  }
  return all;
}

}  // namespace hocket::serve
