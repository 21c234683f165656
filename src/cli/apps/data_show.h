// SPDX-License-Identifier: Apache-2.0
// Functions behind `hocket data show`: a fine-tuning set as the model sees it, as text and as JSON.
#pragma once

#include <cstdint>
#include <string>

#include "engine/example_data.h"

namespace hocket::cli {

struct ShowStyle {
  bool colour = false;    ///< trained tokens in colour; else between ⟦ and ⟧
  bool terminal = false;  ///< control characters are written as \xHH
};

/// `preference`: weights of labels, for the warning about their balance in training.
std::string show_text(const engine::ExampleData& data, bool valid, int64_t count,
                      const engine::PreferenceSection& preference, const ShowStyle& style);
std::string show_json(const engine::ExampleData& data, bool valid, int64_t count,
                      const engine::PreferenceSection& preference);

}  // namespace hocket::cli
