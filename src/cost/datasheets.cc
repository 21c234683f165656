// SPDX-License-Identifier: Apache-2.0
#include "cost/datasheets.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/units.h"

namespace hocket::cost {
namespace {

/// Figures of a datasheet: dense peaks with f32 accumulation in TFLOP/s, memory bandwidth in GB/s.
/// 0: not there.
struct Datasheet {
  std::string_view model, variant;  ///< variant: a further word of the name; empty: any
  double bf16 = 0, f8 = 0, bandwidth = 0;
};

// A variant comes before its model.
constexpr Datasheet kDatasheets[] = {
    {"b200", "", 2250, 4500, 8000},
    {"h200", "", 989, 1979, 4800},
    {"h100", "pcie", 756, 1513, 2000},
    {"h100", "nvl", 835, 1671, 3900},
    {"h100", "", 989, 1979, 3350},
    {"h800", "pcie", 756, 1513, 2000},
    {"h800", "", 989, 1979, 3350},
    {"h20", "", 148, 296, 4000},
    {"a100", "", 312, 0, 2039},
    {"a800", "", 312, 0, 2039},
    {"v100", "", 125, 0, 900},
    {"l40s", "", 362, 733, 864},
    {"a40", "", 149.7, 0, 696},
    {"a6000", "", 154.8, 0, 768},
    {"a10", "", 125, 0, 600},
    {"l4", "", 121, 242, 300},
    {"t4", "", 65, 0, 320},
    {"4090", "", 165.2, 330.3, 1008},
    {"3090", "", 71, 0, 936},
    {"2080", "", 53.8, 0, 616},
    {"mi300x", "", 1307, 2615, 5300},
    {"mi250x", "", 383, 0, 3277},
};

std::vector<std::string> lower_words(std::string_view name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (std::isalnum(byte)) {
      words.back() += static_cast<char>(std::tolower(byte));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  return words;
}

const Datasheet* datasheet_of(std::string_view name) {
  const std::vector<std::string> words = lower_words(name);
  const auto has = [&](std::string_view word) {
    return std::find(words.begin(), words.end(), word) != words.end();
  };
  for (const Datasheet& sheet : kDatasheets) {
    if (has(sheet.model) && (sheet.variant.empty() || has(sheet.variant))) return &sheet;
  }
  return nullptr;
}

}  // namespace

std::string device_model(std::string_view name) {
  if (const Datasheet* sheet = datasheet_of(name)) return std::string(sheet->model);
  constexpr ptrdiff_t kMinDigits = 2;  // fewer are a count, as in "8x"
  for (const std::string& word : lower_words(name)) {
    const auto digits =
        std::count_if(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c); });
    if (digits >= kMinDigits && !word.ends_with("gb")) return word;
  }
  return "";
}

std::vector<std::string> far_from_datasheet(const Device& device) {
  constexpr double kFar = 1.5;
  std::vector<std::string> far;
  const Datasheet* const sheet = datasheet_of(device.name);
  if (!sheet) return far;
  const auto compare = [&](const char* key, double value, double of_sheet, Unit unit,
                           const char* hint) {
    if (value <= 0 || of_sheet <= 0) return;
    const double times = value / of_sheet;
    if (times <= kFar && times >= 1 / kFar) return;
    far.push_back(fmt::format("device.{} is {}, and the datasheet of {} has {}{}", key,
                              format_quantity(value, unit), sheet->model,
                              format_quantity(of_sheet, unit), times > 1 ? hint : ""));
  };
  constexpr const char* kSparse = " dense; peaks with sparsity are twice as high";
  compare("peak.bf16", device.peak.bf16.value, 1e12 * sheet->bf16, Unit::flops_s, kSparse);
  compare("peak.f8", device.peak.f8.value, 1e12 * sheet->f8, Unit::flops_s, kSparse);
  compare("memory_bandwidth", device.memory_bandwidth.value, 1e9 * sheet->bandwidth, Unit::bytes_s,
          "");
  return far;
}

}  // namespace hocket::cost
