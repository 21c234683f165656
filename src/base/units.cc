// SPDX-License-Identifier: Apache-2.0
#include "base/units.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace hocket {
namespace {

struct Suffix {
  const char* text;
  double factor;
};

// Returns the suffixes of a unit, the largest first within one family. The first that gives a short
// exact text is printed.
const std::vector<Suffix>& suffixes(Unit unit) {
  static const std::vector<Suffix> kNone = {};
  static const std::vector<Suffix> kBytes = {{"PiB", 0x1p50}, {"TiB", 0x1p40}, {"GiB", 0x1p30},
                                             {"MiB", 0x1p20}, {"KiB", 0x1p10}, {"PB", 1e15},
                                             {"TB", 1e12},    {"GB", 1e9},     {"MB", 1e6},
                                             {"kB", 1e3},     {"B", 1}};
  static const std::vector<Suffix> kBytesPerSecond = {
      {"PB/s", 1e15},       {"TB/s", 1e12},      {"GB/s", 1e9},       {"MB/s", 1e6},
      {"kB/s", 1e3},        {"B/s", 1},          {"PiB/s", 0x1p50},   {"TiB/s", 0x1p40},
      {"GiB/s", 0x1p30},    {"MiB/s", 0x1p20},   {"KiB/s", 0x1p10},   {"Pbit/s", 1e15 / 8},
      {"Tbit/s", 1e12 / 8}, {"Gbit/s", 1e9 / 8}, {"Mbit/s", 1e6 / 8}, {"kbit/s", 1e3 / 8},
      {"bit/s", 1.0 / 8}};
  static const std::vector<Suffix> kSeconds = {{"h", 3600},        {"min", 60},  {"s", 1},
                                               {"ms", 1e-3},       {"us", 1e-6}, {"ns", 1e-9},
                                               {"\xc2\xb5s", 1e-6}};
  static const std::vector<Suffix> kFlopsPerSecond = {
      {"EFLOP/s", 1e18}, {"PFLOP/s", 1e15}, {"TFLOP/s", 1e12}, {"GFLOP/s", 1e9},
      {"MFLOP/s", 1e6},  {"kFLOP/s", 1e3},  {"FLOP/s", 1}};
  static const std::vector<Suffix> kFlops = {{"EFLOP", 1e18}, {"PFLOP", 1e15}, {"TFLOP", 1e12},
                                             {"GFLOP", 1e9},  {"MFLOP", 1e6},  {"kFLOP", 1e3},
                                             {"FLOP", 1}};
  static const std::vector<Suffix> kCount = {{"T", 1e12}, {"B", 1e9}, {"M", 1e6}, {"k", 1e3}};
  switch (unit) {
    case Unit::bytes:
      return kBytes;
    case Unit::bytes_s:
      return kBytesPerSecond;
    case Unit::seconds:
      return kSeconds;
    case Unit::flops_s:
      return kFlopsPerSecond;
    case Unit::flops:
      return kFlops;
    case Unit::count:
      return kCount;
    case Unit::none:
      break;
  }
  return kNone;
}

// Scales a number. Small factors divide by their exact inverse: 5us is 5 / 1e6 = 5e-6 to the last
// bit.
double scale(double number, double factor) {
  if (factor < 1) return number / std::round(1 / factor);
  return number * factor;
}

}  // namespace

const char* unit_examples(Unit unit) {
  switch (unit) {
    case Unit::bytes:
      return "bytes, such as 512MiB or 80GB";
    case Unit::bytes_s:
      return "bytes or bits per second, such as 3.35TB/s or 400Gbit/s";
    case Unit::seconds:
      return "a time, such as 5us, 1.5ms or 10min";
    case Unit::flops_s:
      return "a rate of operations, such as 989TFLOP/s";
    case Unit::flops:
      return "a number of operations, such as 2GFLOP";
    case Unit::count:
      return "a number, such as 4096, 500k or 2.5M";
    case Unit::none:
      break;
  }
  return "a number";
}

bool parse_quantity(std::string_view text, Unit unit, double* out) {
  text = trim(text);
  if (parse_double(text, out)) return true;
  for (const Suffix& suffix : suffixes(unit)) {
    if (!text.ends_with(suffix.text)) continue;
    // "5us" ends with "s" too: the rest must be a number, or another suffix applies.
    const std::string_view number =
        trim(text.substr(0, text.size() - std::string_view(suffix.text).size()));
    double value = 0;
    if (parse_double(number, &value) && std::isfinite(scale(value, suffix.factor))) {
      *out = scale(value, suffix.factor);
      return true;
    }
  }
  return false;
}

double parse_quantity(std::string_view text, Unit unit, const std::string& where) {
  double value = 0;
  if (!parse_quantity(text, unit, &value)) {
    fail(where, "got {}; expected {}", quote(text), unit_examples(unit));
  }
  return value;
}

std::string format_quantity(double value, Unit unit) {
  std::string best = fmt::format("{}", value);
  if (unit == Unit::none || value == 0 || !std::isfinite(value)) return best;
  bool found = false;
  for (const Suffix& suffix : suffixes(unit)) {
    const double number =
        suffix.factor < 1 ? value * std::round(1 / suffix.factor) : value / suffix.factor;
    if (std::fabs(number) < 1 || std::fabs(number) >= 1e4) continue;
    const std::string text = fmt::format("{}{}", number, suffix.text);
    double back = 0;
    if (!parse_quantity(text, unit, &back) || back != value) continue;
    if (!found || text.size() < best.size()) {
      best = text;
    }
    found = true;
  }
  return best;
}

}  // namespace hocket
