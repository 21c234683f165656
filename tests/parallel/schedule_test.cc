// SPDX-License-Identifier: Apache-2.0
// Pipeline schedules: the built-in ones, PyTorch's CSV, and what is refused.
#include "parallel/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"

namespace hocket::parallel {
namespace {

std::string failure(const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  return "";
}

void expect_contains(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' is not in: " << text;
}

TEST(Schedule, OneForwardOneBackwardIsPyTorchs) {
  // torch.distributed.pipelining's Schedule1F1B for 3 stages and 4 micro-batches.
  EXPECT_EQ(to_csv(one_f_one_b(3, 4)),
            "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n"
            "1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n"
            "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
  EXPECT_EQ(to_csv(gpipe(2, 2)), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
}

TEST(Schedule, BuiltInsAreValidAndHoldFewActivations) {
  for (int stages = 1; stages <= 9; ++stages) {
    for (int n = 1; n <= 12; ++n) {
      EXPECT_NO_THROW(validate(one_f_one_b(stages, n), stages, n, true));
      EXPECT_NO_THROW(validate(gpipe(stages, n), stages, n, true));
      EXPECT_NO_THROW(validate(forward_only(stages, n), stages, n, false));
      const Schedule s = one_f_one_b(stages, n);
      for (int stage = 0; stage < stages; ++stage) {
        int alive = 0, most = 0;
        for (const Action& a : s.ranks[stage]) {
          alive += a.kind == 'F' ? 1 : -1, most = std::max(most, alive);
        }
        EXPECT_EQ(most, std::min(stages - stage, n)) << stages << " " << n << " " << stage;
      }
    }
  }
}

TEST(Schedule, CsvPrintsAndParsesBack) {
  for (int stages : {1, 2, 5}) {
    for (int n : {1, 3, 8}) {
      const Schedule s = one_f_one_b(stages, n);
      EXPECT_EQ(parse_csv(to_csv(s), "s.csv"), s);
    }
  }
  // Idle cells, spaces and Windows line ends.
  const Schedule s = parse_csv("0F0,, 0I0 ,0W0\r\n,1F0,1B0,\r\n", "s.csv");
  EXPECT_EQ(to_csv(s), "0F0,0I0,0W0\n1F0,1B0\n");
  EXPECT_NO_THROW(validate(s, 2, 1, true));
}

TEST(Schedule, CellsThatAreNotActionsAreNamed) {
  auto parse = [](const char* text) {
    return failure([&] { static_cast<void>(parse_csv(text, "s.csv")); });
  };
  expect_contains(parse("0F0\n1F0,hello\n"), "row 2, column 2: cell 'hello' has no action");
  expect_contains(parse("0F0,xB0"), "row 1, column 2: cell 'xB0' has a bad number");
  expect_contains(parse("0F-1"), "cell '0F-1' has a bad number");
  expect_contains(parse("0F99999999999999999999"), "has a bad number");
  expect_contains(parse("0F0_1"), "has a bad number");
  expect_contains(parse("0Q0"), "has no action");
  for (const char* cell :
       {"(5F0;7B1)OVERLAP_F_B", "0SEND_F0", "1RECV_B2", "1UNSHARD", "1RESHARD", "3REDUCE_GRAD"}) {
    const std::string text = parse((std::string("0F0,") + cell).c_str());
    expect_contains(text, "s.csv");
    expect_contains(text, "column 2: cell '" + std::string(cell) + "'");
    expect_contains(text, "is not supported; expected the actions F, B, I and W");
  }
  expect_contains(parse(""), "the schedule is empty");
  expect_contains(parse("s.csv"), "s.csv");
}

TEST(Schedule, WhatIsNotAStepIsRefused) {
  auto check = [](const char* text, int stages, int n, bool backward = true) {
    const Schedule s = parse_csv(text, "s.csv");
    return failure([&] { validate(s, stages, n, backward); });
  };
  EXPECT_EQ(check("0F0,0F1,0B1,0B0", 1, 2), "");  // backward in any order
  expect_contains(check("0F0,0B0", 2, 1), "has 1 row; expected 2");
  expect_contains(check("0B0,0F0", 1, 1), "row 1, column 1: 0B0 comes before its forward");
  expect_contains(check("0F0,0B0,0B0", 1, 1), "column 3: 0B0 comes after FB");
  expect_contains(check("0F0,0W0,0I0", 1, 1), "column 2: 0W0 comes after F");
  expect_contains(check("0F0,0I0", 1, 1), "micro-batch 0 runs 'FI'");
  expect_contains(check("0F0,0B0", 1, 2), "micro-batch 1 runs ''");
  expect_contains(check("0F0,0F5,0B0", 1, 1), "0F5 is beyond the 1 micro-batches");
  expect_contains(check("1F0,1B0", 1, 1), "belongs to stage 1; expected 0");
  expect_contains(check("0F0,0B0", 1, 1, false), "backward action of a forward-only program");
}

TEST(Schedule, NamesAndFiles) {
  EXPECT_EQ(make_schedule("1f1b", 3, 5), one_f_one_b(3, 5));
  EXPECT_EQ(make_schedule("gpipe", 3, 5), gpipe(3, 5));
  expect_contains(failure([] { static_cast<void>(make_schedule("2f2b", 2, 2)); }),
                  "expected 1f1b, gpipe, or a .csv file");
  expect_contains(failure([] { static_cast<void>(make_schedule("/no/such.csv", 2, 2)); }),
                  "/no/such.csv");
}

}  // namespace
}  // namespace hocket::parallel
