// SPDX-License-Identifier: Apache-2.0
// Batches, losses and advantages that tests/peers/rl/make.py wrote with verl and TRL.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/json.h"
#include "rl/advantage.h"

namespace hocket::rl::fixture {

inline const nlohmann::json& all() {
  static const nlohmann::json json = [] {
    const char* root = std::getenv("HOCKET_SOURCE_DIR");
    return read_json(std::string(root == nullptr ? "." : root) +
                     "/tests/peers/rl/fixtures/losses.json");
  }();
  return json;
}
inline const nlohmann::json& batch(const nlohmann::json& test) {
  return all().at("batches").at(test.at("batch").get<std::string>());
}
inline std::vector<double> numbers(const nlohmann::json& list) {
  return list.get<std::vector<double>>();
}
inline std::string text(const nlohmann::json& test, const char* key) {
  return test.at(key).get<std::string>();
}

/// Returns the samples of a batch, with the mask as weights if `masked`.
inline std::vector<LossInputs> loss_inputs(const nlohmann::json& data, bool masked) {
  std::vector<LossInputs> list;
  size_t begin = 0;
  for (size_t i = 0; i < data.at("length").size(); ++i) {
    const auto n = data.at("length")[i].get<size_t>();
    const auto part = [&](const char* key) {
      const std::vector<double> all = numbers(data.at(key));
      const auto from = all.begin() + static_cast<int64_t>(begin);
      return std::vector<double>(from, from + static_cast<int64_t>(n));
    };
    LossInputs inputs;
    inputs.group = data.at("group")[i].get<int64_t>();
    inputs.reward = data.at("reward")[i].get<double>();
    inputs.old = part("old");
    inputs.rollout = part("rollout");
    inputs.reference = part("reference");
    inputs.values = part("old_value");
    if (masked) {
      inputs.weights = part("mask");
    }
    list.push_back(std::move(inputs));
    begin += n;
  }
  return list;
}

/// Returns a member of all samples, one behind the other.
inline std::vector<double> joined(const std::vector<LossInputs>& loss_inputs,
                                  std::vector<double> LossInputs::*member) {
  std::vector<double> all;
  for (const LossInputs& inputs : loss_inputs) {
    all.insert(all.end(), (inputs.*member).begin(), (inputs.*member).end());
  }
  return all;
}

/// A type of the packages' results: the relative tolerance of a comparison, and the size below
/// which it is one of this size, since sums of larger terms cancel.
struct Precision {
  const char* name;
  double tolerance, floor;
};
inline constexpr Precision kPrecisions[] = {{"f64", 1e-10, 1e-2}, {"f32", 1e-5, 0.1}};

/// Expects equal numbers.
inline void expect_near(const std::vector<double>& got, const std::vector<double>& want,
                        const Precision& precision, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) {
    const double size = std::max(std::abs(want[i]), precision.floor);
    ASSERT_LE(std::abs(got[i] - want[i]), precision.tolerance * size)
        << what << " " << i << ": got " << got[i] << ", expected " << want[i];
  }
}

}  // namespace hocket::rl::fixture
