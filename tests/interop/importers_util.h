// SPDX-License-Identifier: Apache-2.0
// Helpers of tests of importers.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "base/error.h"
#include "interop/foreign.h"

namespace hocket::interop {

inline bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// Text of the error of bad input that `act` throws; empty: none.
inline std::string refusal_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "";
}

inline Beside beside(std::set<std::string> keys, bool keeps_plan = true) {
  Beside all;
  all.keys = std::move(keys);
  all.keeps_plan = keeps_plan;
  return all;
}

}  // namespace hocket::interop
