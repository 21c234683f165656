// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace hocket {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') {
      c = static_cast<char>(c - 'A' + 'a');
    }
  }
  return out;
}

// Three significant digits, trailing zeros after the point dropped.
std::string three_digits(double value) {
  const double size = std::fabs(value);
  std::string text = fmt::format("{:.{}f}", value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
  if (text.find('.') != std::string::npos) {
    text.erase(text.find_last_not_of('0') + 1);
    if (text.back() == '.') {
      text.pop_back();
    }
  }
  return text;
}

}  // namespace

int edit_distance(std::string_view text, std::string_view b) {
  const size_t n = b.size();
  std::vector<int> before(n + 1), previous(n + 1), row(n + 1);
  for (size_t j = 0; j <= n; ++j) {
    row[j] = static_cast<int>(j);
  }
  for (size_t i = 1; i <= text.size(); ++i) {
    before.swap(previous);
    previous.swap(row);
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= n; ++j) {
      const int replace = previous[j - 1] + (text[i - 1] != b[j - 1]);
      row[j] = std::min({previous[j] + 1, row[j - 1] + 1, replace});
      if (i > 1 && j > 1 && text[i - 1] == b[j - 2] && text[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
  }
  return row[n];
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  const std::string wanted = lower(word.substr(0, 200));
  std::string best;
  int best_distance = 0;
  for (const std::string& candidate : candidates) {
    const int distance = edit_distance(wanted, lower(candidate));
    const int allowed =
        std::max(2, static_cast<int>(std::max(wanted.size(), candidate.size())) / 3);
    // A word of three letters with two others is another word.
    if (distance > allowed || 2 * distance > static_cast<int>(candidate.size())) continue;
    if (best.empty() || distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return text.substr(text.size());
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> out;
  for (;;) {
    const size_t at = text.find(separator);
    out.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return out;
    text.remove_prefix(at + 1);
  }
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

bool parse_int(std::string_view text, int64_t* out) {
  if (!text.empty() && text[0] == '+') {
    text.remove_prefix(1);
    if (!text.empty() && text[0] == '-') return false;
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  *out = value;
  return true;
}

bool parse_double(std::string_view text, double* out) {
  if (!text.empty() && text[0] == '+') {
    text.remove_prefix(1);
    if (!text.empty() && text[0] == '-') return false;
  }
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return false;
  }
  *out = value;
  return true;
}

std::string human_bytes(double bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int unit = 0;
  while (std::fabs(bytes) >= 1023.5 && unit < 5) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{} {}", three_digits(bytes), kUnits[unit]);
}

std::string human_time(double seconds) {
  const double size = std::fabs(seconds);
  if (size < 999.5e-9) return fmt::format("{} ns", three_digits(seconds * 1e9));
  if (size < 999.5e-6) return fmt::format("{} us", three_digits(seconds * 1e6));
  if (size < 999.5e-3) return fmt::format("{} ms", three_digits(seconds * 1e3));
  if (size < 59.95) return fmt::format("{} s", three_digits(seconds));
  if (size >= 1e15) return fmt::format("{} s", seconds);
  const int64_t whole = std::llround(seconds);
  if (size < 3599.5) return fmt::format("{} min {:02} s", whole / 60, std::abs(whole % 60));
  const int64_t minutes = std::llround(seconds / 60);
  return fmt::format("{} h {:02} min", minutes / 60, std::abs(minutes % 60));
}

std::string human_count(double count) {
  constexpr const char* kUnits[] = {"", " k", " M", " B", " T"};
  int unit = 0;
  while (std::fabs(count) >= 999.5 && unit < 4) {
    count /= 1000;
    ++unit;
  }
  return three_digits(count) + kUnits[unit];
}

std::string number_text(double value) {
  return std::isnan(value) ? "nan" : fmt::format("{}", value);
}

std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string escape(std::string_view text, std::string_view also) {
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '\\' || also.find(c) != also.npos) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

bool unescape(std::string_view text, std::string* out) {
  std::string plain;
  plain.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      plain += text[i];
      continue;
    }
    if (text.size() - i < 4 || text[i + 1] != 'x') return false;
    unsigned byte = 0;  // takes no sign
    const char* const end = text.data() + i + 4;
    const auto [stop, error] = std::from_chars(end - 2, end, byte, 16);
    if (error != std::errc() || stop != end) return false;
    plain += static_cast<char>(byte);
    i += 3;
  }
  *out = std::move(plain);
  return true;
}

std::string quote(std::string_view text, size_t limit) {
  std::string out = "'";
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else {
      out += fmt::format("\\x{:02x}", byte);
    }
  }
  return out + (text.size() > limit ? "...'" : "'");
}

std::string shell_quoted(const std::string& word) {
  constexpr std::string_view kPlain = "_-./=:,+@%";
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [&](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           kPlain.find(c) != kPlain.npos;
  });
  if (plain) return word;
  std::string out = "'";
  for (const char c : word) {
    out += c == '\'' ? "'\\''" : std::string(1, c);
  }
  return out + "'";
}

std::string printable(std::string_view text) {
  // Below the blank and DEL are one byte each; U+0080 to U+009F are C2 80 to C2 9F.
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    if ((byte < 0x20 && byte != '\n' && byte != '\t') || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else if (byte == 0xC2 && next >= 0x80 && next < 0xA0) {
      out += fmt::format("\\x{:02x}", next);
      ++i;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace hocket
