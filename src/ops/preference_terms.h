// SPDX-License-Identifier: Apache-2.0
// Terms of a preference loss, as its attribute names them: "sigmoid", or a sum with weights,
// "sigmoid:0.8,ipo:0.2".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace hocket::ops {

struct PreferenceTerm {
  std::string name;
  double weight = 1;
  /// Returns whether it compares log-probabilities per token.
  bool per_token() const { return name == "ipo" || name == "sigmoid_norm"; }
};

/// Throws Error for a name that is no loss, or a weight that is no number above 0.
inline std::vector<PreferenceTerm> preference_terms(const std::string& text) {
  constexpr const char* kOp = "preference_loss";
  std::vector<PreferenceTerm> terms;
  for (const std::string& part : split(text, ',')) {
    PreferenceTerm term;
    const size_t colon = part.find(':');
    term.name = part.substr(0, colon);
    if (term.name != "sigmoid" && term.name != "sigmoid_norm" && term.name != "ipo" &&
        term.name != "hinge") {
      fail(kOp, "loss is {}; expected sigmoid, sigmoid_norm, ipo or hinge", part);
    }
    if (colon != part.npos &&
        (!parse_double(part.substr(colon + 1), &term.weight) || !(term.weight > 0))) {
      fail(kOp, "the weight in {} is no number above 0", part);
    }
    terms.push_back(std::move(term));
  }
  return terms;
}

}  // namespace hocket::ops
