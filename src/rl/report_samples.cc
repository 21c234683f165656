// SPDX-License-Identifier: Apache-2.0
#include "rl/report_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/text.h"
#include "base/utf8.h"
#include "diagnose/html_page.h"

namespace hocket::rl {

namespace {

constexpr size_t kGroups = 4, kAnswers = 16;
constexpr size_t kPromptBytes = 4096, kTruthBytes = 1024, kShownErrorBytes = 500, kNameBytes = 80;
constexpr size_t kNumbers = 12;           // details of a reward
constexpr size_t kTokensOfCharacter = 8;  // joined at most; characters have up to 4 bytes
constexpr double kLevels = 4;             // shades of a colour

/// Returns `count` numbers below `all`, evenly spaced, from 0.
std::vector<size_t> evenly(size_t all, size_t count) {
  std::vector<size_t> chosen;
  for (size_t i = 0; i < std::min(all, count); ++i) {
    chosen.push_back(i * all / std::min(all, count));
  }
  return chosen;
}

/// Returns the most tokens of an answer with which answers of these lengths have `most` together.
int64_t fair_length(std::vector<int64_t> lengths, int64_t most) {
  std::sort(lengths.begin(), lengths.end());
  int64_t left = most;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const int64_t share = left / static_cast<int64_t>(lengths.size() - i);
    if (lengths[i] > share) return share;
    left -= lengths[i];
  }
  return lengths.empty() ? 0 : lengths.back();
}

template <class T>
std::vector<T> piece(const std::vector<T>& all, size_t begin, size_t end) {
  return {all.begin() + static_cast<std::ptrdiff_t>(std::min(begin, all.size())),
          all.begin() + static_cast<std::ptrdiff_t>(std::min(end, all.size()))};
}

ShownTokens tokens_of(const Sample& sample, const LossInputs* inputs, size_t begin, size_t end) {
  ShownTokens out;
  out.ids = piece(sample.tokens, begin, end);
  out.logprobs = piece(sample.logprobs, begin, end);
  out.sampled_logprobs = piece(sample.sampled_logprobs, begin, end);
  if (inputs != nullptr) {
    out.advantages = piece(inputs->advantages, begin, end);
  }
  return out;
}

ShownAnswer answer_of(const Sample& sample, const LossInputs* inputs, int64_t most) {
  ShownAnswer answer;
  answer.sample.index = sample.index;
  answer.sample.status = sample.status;
  answer.sample.version = sample.version;
  answer.sample.reward = sample.reward;
  answer.sample.shaped_reward = sample.shaped_reward;
  answer.sample.reward_failed = sample.reward_failed;
  for (const auto& [name, part] : sample.rewards) {
    RewardPart& kept = answer.sample.rewards[without_middle(name, kNameBytes)];
    kept.score = part.score;
    kept.failed = part.failed;
    kept.tries = part.tries;
    kept.error = without_middle(part.error, kShownErrorBytes);
    for (const auto& [detail, value] : part.details) {
      if (kept.details.size() == kNumbers) break;
      kept.details[without_middle(detail, kNameBytes)] = value;
    }
  }
  const size_t n = sample.tokens.size();
  const size_t kept = std::min(n, static_cast<size_t>(most));
  const size_t tail = kept == n ? 0 : kept / 4;
  answer.tokens = std::ssize(sample.tokens);
  answer.head = tokens_of(sample, inputs, 0, kept - tail);
  answer.tail = tokens_of(sample, inputs, n - tail, n);
  answer.counts = inputs == nullptr || inputs->counts;
  return answer;
}

/// Returns the bytes of the character that a byte begins; 0: it begins none.
size_t length_by_first(uint8_t byte) {
  if (byte < 0xC0 || byte >= 0xF8) return 0;
  if (byte < 0xE0) return 2;
  return byte < 0xF0 ? 3 : 4;
}

/// Returns how many bytes at the end of a text are the beginning of a character.
size_t unfinished(std::string_view text) {
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<uint8_t>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;
    return length_by_first(byte) > back ? back : 0;
  }
  return 0;
}

/// Returns whether a character acts on others or is invisible: bidirectional marks, zero widths.
bool acts(uint32_t c) {
  return (c >= 0x80 && c < 0xA0) || c == 0xAD || c == 0x61C || (c >= 0x200B && c <= 0x200F) ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF ||
         (c >= 0xFFF9 && c <= 0xFFFB) || (c >= 0xE0000 && c <= 0xE007F);
}

std::string number(double value) {
  if (std::isnan(value)) return "not a number";
  if (std::isinf(value)) return value > 0 ? "infinite" : "-infinite";
  return fmt::format("{:.4g}", value);
}

/// Largest size of an advantage of all shown tokens.
double largest_advantage(const ShownSamples& samples) {
  double largest = 0;
  for (const ShownGroup& group : samples.shown) {
    for (const ShownAnswer& answer : group.shown) {
      for (const ShownTokens* tokens : {&answer.head, &answer.tail}) {
        for (const double advantage : tokens->advantages) {
          largest = std::isfinite(advantage) ? std::max(largest, std::abs(advantage)) : largest;
        }
      }
    }
  }
  return largest;
}

/// Returns the class of a token: p1 to p4 above 0, n1 to n4 below; empty for 0.
std::string shade(double advantage, double largest) {
  if (!std::isfinite(advantage) || advantage == 0 || largest == 0) return "";
  const double level = std::clamp(std::ceil(kLevels * std::abs(advantage) / largest), 1.0, kLevels);
  return fmt::format("{}{}", advantage > 0 ? 'p' : 'n', static_cast<int>(level));
}

std::string bytes_of(const data::Tokenizer& tokenizer, int32_t id) {
  // A model may have more ids than its tokenizer.
  if (id < 0 || id >= tokenizer.vocab_size()) return fmt::format("[id {}]", id);
  return std::string(tokenizer.token_bytes(id));
}

std::string title_of(const ShownTokens& tokens, size_t begin, size_t end) {
  std::string title = end - begin > 1 ? fmt::format("{} tokens: log p", end - begin) : "log p";
  for (size_t t = begin; t < end; ++t) {
    if (t >= tokens.logprobs.size()) continue;
    title += ' ' + number(tokens.logprobs[t]);
    if (t < tokens.sampled_logprobs.size() && tokens.sampled_logprobs[t] != tokens.logprobs[t]) {
      title += fmt::format(" (drawn at {})", number(tokens.sampled_logprobs[t]));
    }
  }
  if (end - 1 < tokens.advantages.size()) {
    title += ", advantage " + number(tokens.advantages[end - 1]);
  }
  return title;
}

/// Appends tokens as spans; those that share a character are one.
void append_tokens(const ShownTokens& tokens, const data::Tokenizer& tokenizer, double largest,
                   std::string* out) {
  for (size_t begin = 0; begin < tokens.ids.size();) {
    size_t end = begin;
    std::string bytes;
    do {
      bytes += bytes_of(tokenizer, tokens.ids[end++]);
    } while (end < tokens.ids.size() && end - begin < kTokensOfCharacter && unfinished(bytes) > 0);
    const double advantage = end - 1 < tokens.advantages.size() ? tokens.advantages[end - 1] : 0;
    const std::string level = shade(advantage, largest);
    *out += fmt::format("<span{} title=\"{}\">",
                        level.empty() ? "" : fmt::format(" class=\"{}\"", level),
                        title_of(tokens, begin, end));
    // A token of nothing but a line end needs a sign to be seen.
    *out += bytes == "\n" ? "\u21B5\n" : visible_html(bytes);
    *out += "</span>";
    begin = end;
  }
}

std::string rewards_html(const Sample& sample) {
  std::string out = "<b>reward " + number(sample.reward) + "</b>";
  if (sample.shaped_reward != sample.reward) {
    out += fmt::format(", {} with the penalty of its length", number(sample.shaped_reward));
  }
  for (const auto& [name, part] : sample.rewards) {
    out += fmt::format(" \u00B7 {} {}", visible_html(name), number(part.score));
    std::string details;
    for (const auto& [detail, value] : part.details) {
      details +=
          fmt::format("{}{} {}", details.empty() ? "" : ", ", visible_html(detail), number(value));
    }
    if (!details.empty()) {
      out += fmt::format(" ({})", details);
    }
  }
  return out;
}

std::string answer_html(const ShownAnswer& answer, const data::Tokenizer& tokenizer,
                        double largest) {
  const Sample& sample = answer.sample;
  std::string out =
      fmt::format("<div class=\"answer\"><p class=\"marks\">{} \u00B7 {} \u00B7 {}{}</p>",
                  rewards_html(sample), to_string(sample.status), counted(answer.tokens, "token"),
                  answer.counts ? "" : " \u00B7 not in the loss");
  for (const auto& [name, part] : sample.rewards) {
    if (!part.failed) continue;
    out += fmt::format("<p class=\"no failed\">{} failed after {}: {}</p>", visible_html(name),
                       part.tries == 1 ? "1 try" : fmt::format("{} tries", part.tries),
                       visible_html(part.error));
  }
  out += "<pre class=\"tokens\" tabindex=\"0\">";
  append_tokens(answer.head, tokenizer, largest, &out);
  const int64_t shown = std::ssize(answer.head.ids) + std::ssize(answer.tail.ids);
  if (shown < answer.tokens) {
    out += fmt::format("<i class=\"cut\"> \u2026 {} left out \u2026 </i>",
                       counted(answer.tokens - shown, "token"));
  }
  append_tokens(answer.tail, tokenizer, largest, &out);
  return out + "</pre></div>\n";
}

std::string group_html(const ShownGroup& group, const data::Tokenizer& tokenizer, double largest,
                       bool open) {
  std::string rewards;
  for (const ShownAnswer& answer : group.shown) {
    rewards += (rewards.empty() ? "" : ", ") + number(answer.sample.reward);
  }
  std::string out = fmt::format(
      "<details class=\"group\"{}><summary>Prompt {}: {} {}{}</summary>\n", open ? " open" : "",
      group.number, group.shown.size() == 1 ? "reward" : "rewards", rewards,
      group.answers > std::ssize(group.shown)
          ? fmt::format(", and {} more", counted(group.answers - std::ssize(group.shown), "answer"))
          : "");
  if (!group.data_source.empty()) {
    out += fmt::format("<p class=\"missing\">{}</p>", visible_html(group.data_source));
  }
  out += fmt::format("<pre class=\"example prompt\" tabindex=\"0\">{}</pre>",
                     visible_html(group.prompt));
  out +=
      fmt::format("<p class=\"missing\">ground truth: {}</p>\n",
                  group.truth.empty() ? std::string("none")
                                      : fmt::format("<code>{}</code>", visible_html(group.truth)));
  for (const ShownAnswer& answer : group.shown) {
    out += answer_html(answer, tokenizer, largest);
  }
  return out + "</details>\n";
}

/// Returns the ground truth as its text, or as JSON.
std::string truth_text(const nlohmann::ordered_json& truth) {
  if (truth.is_null()) return "";
  if (truth.is_string()) return without_middle(truth.get_ref<const std::string&>(), kTruthBytes);
  return without_middle(
      truth.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace), kTruthBytes);
}

}  // namespace

std::string without_middle(std::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  size_t head = limit - limit / 4, tail = text.size() - limit / 4;
  // Whole characters: no byte that continues one is the first left out, or the first behind.
  while (head > 0 && (static_cast<uint8_t>(text[head]) & 0xC0) == 0x80 && limit - head < 100) {
    --head;
  }
  while (tail < text.size() && (static_cast<uint8_t>(text[tail]) & 0xC0) == 0x80) {
    ++tail;
  }
  return fmt::format("{} ... ({} bytes left out) ... {}", text.substr(0, head), tail - head,
                     text.substr(tail));
}

std::string visible_html(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const int length = utf8_length(text, at);
    if (length == 0) {
      out += "\uFFFD";
      ++at;
      continue;
    }
    const uint32_t c = utf8_code_point(text, at, length);
    if (c == 0x7F || (c < 0x20 && c != '\n' && c != '\t')) {
      append_utf8(c == 0x7F ? 0x2421 : 0x2400 + c, &out);
    } else if (acts(c)) {
      out += fmt::format("[U+{:04X}]", c);
    } else {
      out += diagnose::escape_html(text.substr(at, static_cast<size_t>(length)));
    }
    at += static_cast<size_t>(length);
  }
  return out;
}

ShownSamples shown_samples(int64_t update, std::span<const Sample> samples,
                           std::span<const LossInputs> loss_inputs, const PromptOf& prompt_of,
                           int64_t most_tokens) {
  std::vector<size_t> begins;
  for (size_t i = 0; i < samples.size(); ++i) {
    if (i == 0 || samples[i].group != samples[i - 1].group) {
      begins.push_back(i);
    }
  }
  ShownSamples out;
  out.update = update;
  out.groups = std::ssize(begins);
  begins.push_back(samples.size());
  std::vector<std::pair<size_t, size_t>> ranges;  // the answers shown of each group
  std::vector<int64_t> lengths;
  for (const size_t g : evenly(begins.size() - 1, kGroups)) {
    ranges.emplace_back(begins[g], std::min(begins[g + 1], begins[g] + kAnswers));
    ShownGroup group;
    group.number = samples[begins[g]].group;
    group.answers = static_cast<int64_t>(begins[g + 1] - begins[g]);
    const Prompt& prompt = prompt_of(begins[g]);
    group.prompt = without_middle(prompt.text, kPromptBytes);
    group.truth = truth_text(prompt.ground_truth);
    group.data_source = without_middle(prompt.data_source, kNameBytes);
    out.shown.push_back(std::move(group));
    for (size_t i = ranges.back().first; i < ranges.back().second; ++i) {
      lengths.push_back(std::ssize(samples[i].tokens));
    }
  }
  const int64_t most = fair_length(std::move(lengths), most_tokens);
  for (size_t g = 0; g < ranges.size(); ++g) {
    for (size_t i = ranges[g].first; i < ranges[g].second; ++i) {
      out.shown[g].shown.push_back(
          answer_of(samples[i], i < loss_inputs.size() ? &loss_inputs[i] : nullptr, most));
    }
  }
  return out;
}

std::string to_html(const ShownSamples& samples, const data::Tokenizer& tokenizer) {
  const double largest = largest_advantage(samples);
  std::string out;
  for (const ShownGroup& group : samples.shown) {
    out += group_html(group, tokenizer, largest, &group == &samples.shown.front());
  }
  return out;
}

}  // namespace hocket::rl
