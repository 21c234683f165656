// SPDX-License-Identifier: Apache-2.0
// Pipeline schedules: the built-in ones, PyTorch's CSV, and refused ones.
#include "parallel/schedules/schedule.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/file.h"

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

TEST(Schedule, OneForwardOneBackwardEqualsThatOfPyTorch) {
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
      EXPECT_NO_THROW(validate(zero_bubble_h1(stages, 1, n), stages, n, true))
          << stages << " " << n;
      EXPECT_NO_THROW(validate(zero_bubble_v(stages, n), stages, n, true, 2)) << stages << " " << n;
      if (n >= 2 * stages) {
        EXPECT_NO_THROW(validate(dual_pipe_v(stages, n), stages, n, true, 2)) << stages << " " << n;
      }
      if (n >= 2 * stages && n % 2 == 0 && stages % 2 == 0) {
        EXPECT_NO_THROW(validate(dual_pipe(stages, n), stages, n, true)) << stages << " " << n;
      }
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
  expect_contains(parse("0F0,xB0"), "row 1, column 2: cell 'xB0' has no action");
  expect_contains(parse("0F0,B0"), "row 1, column 2: cell 'B0' has a bad number");
  expect_contains(parse("0F0,,0F"), "row 1, column 3: cell '0F' has a bad number");
  expect_contains(parse("0F-1"), "cell '0F-1' has a bad number");
  expect_contains(parse("0F99999999999999999999"), "has a bad number");
  expect_contains(parse("0F0_1"), "has a bad number");
  expect_contains(parse("0Q0"), "has no action");
  expect_contains(parse("(0F0,0B0)OVERLAP_F_B"), "column 1: cell '(0F0' is no pair");
  expect_contains(parse("(0F0;0B1)OVERLAP"), "is no pair");
  expect_contains(parse("(0F0)OVERLAP_F_B"), "overlaps other than two actions");
  expect_contains(parse("(0F0;0B1;0W2)OVERLAP_F_B"), "overlaps other than two actions");
  expect_contains(parse("(0F0;0UNSHARD)OVERLAP_F_B"), "overlaps a cell that is no action");
  expect_contains(parse("(0F0;0B0)OVERLAP_F_B"), "overlaps two actions of one micro-batch");
  expect_contains(parse(""), "the schedule is empty");
  // A row is a line of the file, whichever of them are blank.
  expect_contains(parse("\n\n0F0,0B0\n \t\n1F0,hello\n"), "row 5, column 2: cell 'hello'");
  expect_contains(parse("0F0\n\xEF\xBB\xBF"
                        "1F0"),
                  "row 2, column 1: cell '\xEF\xBB\xBF"
                  "1F0'");
  expect_contains(parse("s.csv"), "s.csv");
}

TEST(Schedule, ByteOrderMarksAndBlankLinesAreIgnored) {
  const Schedule s = parse_csv(
      "\xEF\xBB\xBF"
      "0F0,\t0B0 \t,\r\n\r\n\t1F0 , 1B0,1W0\r\n",
      "s.csv");
  EXPECT_EQ(to_csv(s), "0F0,0B0\n1F0,1B0,1W0\n");
  // Line numbers in errors count blank lines.
  expect_contains(failure([&] { validate(s, 2, 1, true); }), "row 3, column 3: 1W0 comes after FB");
  const Schedule moved = parse_csv("\n0F0,0B0,1F0\n\n1F0,1B0", "s.csv");
  expect_contains(failure([&] { validate(moved, 2, 1, true); }),
                  "row 2, column 3: 1F0 is in row 2; expected row 4");
}

TEST(Schedule, OverlappedPairsAreOneCell) {
  const Schedule s = parse_csv("0F0,( 0F1 ; 0B0 )OVERLAP_F_B,,0B1\n", "s.csv");
  EXPECT_EQ(to_csv(s), "0F0,(0F1;0B0)OVERLAP_F_B,0B1\n");
  EXPECT_NO_THROW(validate(s, 1, 2, true));
  const Schedule twice = parse_csv("0F0,(0F1;0B0)OVERLAP_F_B,,0B0,0B1\n", "s.csv");
  expect_contains(failure([&] { validate(twice, 1, 2, true); }),
                  "row 1, column 4: 0B0 comes after FB");
  // Both actions of a pair wait for the inputs of both, so the second row's 1B0 never runs.
  const Schedule stuck =
      parse_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n", "s.csv");
  expect_contains(failure([&] { validate(stuck, 2, 2, true); }),
                  "row 1, column 2: 0B0 waits for 1B0 (row 2, column 2), which comes after 1F1 "
                  "(row 2, column 2), which waits for 0F1 (row 1, column 2)");
}

TEST(Schedule, PyTorchsOtherCellsMustAgreeWithLowering) {
  auto parse = [](const char* text) {
    return failure([&] { static_cast<void>(parse_csv(text, "s.csv")); });
  };
  EXPECT_EQ(to_csv(parse_csv("0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0RESHARD,0REDUCE_GRAD\n"
                             "1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD\n",
                             "s.csv")),
            "0F0,0B0\n1F0,1B0\n");
  expect_contains(parse("0SEND_F0,0F0,0B0"),
                  "row 1, column 1: cell '0SEND_F0' precedes the action whose output it sends");
  expect_contains(parse("1F0,1B0,1RECV_F0"),
                  "column 3: cell '1RECV_F0' follows the action that reads it");
  expect_contains(parse("0F0,0I0,0REDUCE_GRAD,0W0"),
                  "column 3: cell '0REDUCE_GRAD' reduces gradients to which a later cell adds");
  expect_contains(parse("0UNSHARD,0F0,0RESHARD,,0B0"),
                  "column 5: cell '0B0' runs while its stage is sharded");
  expect_contains(parse("0F0,0UNSHARD,0B0"),
                  "column 1: cell '0F0' runs while its stage is sharded");
}

TEST(Schedule, DeadlocksAreNamed) {
  auto check = [](const char* text, int stages, int n) {
    const Schedule s = parse_csv(text, "s.csv");
    return failure([&] { validate(s, stages, n, true); });
  };
  expect_contains(check("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", 2, 2),
                  "[s.csv] row 1, column 2: 0B0 waits for 1B0 (row 2, column 3), which comes after "
                  "1F1 (row 2, column 2), which waits for 0F1 (row 1, column 3), which comes after "
                  "0B0 (row 1, column 2)");
  // The third row waits, too, but for the cycle of the others.
  expect_contains(check("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n2F0,2F1,2B0,2B1\n", 3, 2),
                  "row 1, column 2: 0B0 waits for 1B0");
}

TEST(Schedule, DualPipeRunsMicroBatchesInBothDirections) {
  const Schedule s = dual_pipe(4, 8);
  const Routes routes = routes_of(s, 4, 1, 8);
  EXPECT_EQ(routes.ranks, (std::vector<std::vector<int>>{{0, 1, 2, 3}, {3, 2, 1, 0}}));
  EXPECT_EQ(routes.of, (std::vector<int>{0, 0, 0, 0, 1, 1, 1, 1}));
  // dualpipe.py runs the last rank as the first, with the directions exchanged.
  EXPECT_EQ(to_csv({.ranks = {s.ranks[0]}}),
            "0F0,0F1,0F2,3F4,3I4,3W4,3F5,(0F3;3B5)OVERLAP_F_B,(3F6;0B0)OVERLAP_F_B,3B6,"
            "(3F7;0B1)OVERLAP_F_B,3B7,0I2,0W2,0I3,0W3\n");
  expect_contains(failure([] { static_cast<void>(dual_pipe(3, 8)); }), "expected an even number");
  expect_contains(failure([] { static_cast<void>(dual_pipe(4, 6)); }), "at least 2 x plan.pp 4");
  expect_contains(failure([] { static_cast<void>(dual_pipe_v(4, 7)); }),
                  "dualpipev got 7 micro-batches for 8 stages");
}

TEST(Schedule, ZeroBubblesHoldNoMoreThanOneForwardOneBackward) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    const Schedule s = zero_bubble_h1(ranks, 1, 3 * ranks);
    for (const std::vector<Action>& row : s.ranks) {
      int alive = 0, most = 0;
      for (const Action& a : row) {
        alive += a.kind == 'F' ? 1 : a.kind == 'W' ? -1 : 0;
        most = std::max(most, alive);
      }
      EXPECT_LE(most, ranks);
    }
  }
}

TEST(Schedule, IncompleteStepsAreRefused) {
  auto check = [](const char* text, int stages, int n, bool backward = true) {
    const Schedule s = parse_csv(text, "s.csv");
    return failure([&] { validate(s, stages, n, backward); });
  };
  EXPECT_EQ(check("0F0,0F1,0B1,0B0", 1, 2), "");  // backward in any order
  expect_contains(check("0F0,0B0", 2, 1), "has 1 row; expected 2");
  expect_contains(check("0B0,0F0", 1, 1), "row 1, column 1: 0B0 comes before its forward");
  expect_contains(check("0F0,0B0,0B0", 1, 1), "column 3: 0B0 comes after FB");
  expect_contains(check("0F0,0W0,0I0", 1, 1), "column 2: 0W0 comes after F");
  expect_contains(check("0F0,0I0,0F1,0B1", 1, 2),
                  "row 1, column 2: 0I0 is the last cell of micro-batch 0 of stage 0, which runs "
                  "'FI'; expected F and then B, or F, I, W");
  expect_contains(check("0F0,0B0,0F1", 1, 2),
                  "row 1, column 3: 0F1 is the last cell of micro-batch 1 of stage 0, which runs "
                  "'F'; expected F");
  expect_contains(check("0F0,0B0", 1, 2),
                  "row 1, column 2: after 0B0, no row runs micro-batch 1 of stage "
                  "0; expected 0F1 in a row");
  expect_contains(check("0F0,0B0\n1F0,1B1\n", 2, 2),
                  "row 2, column 2: 1B1 is present, but no row runs micro-batch 1 of stage 0; "
                  "expected 0F1 in a row");
  expect_contains(check(",\n,\n", 2, 1), "no row runs stage 0; expected 2 stages");
  expect_contains(check("0F0,0F5,0B0", 1, 1), "0F5 is beyond the 1 micro-batches");
  expect_contains(check("1F0,1B0", 1, 1),
                  "row 1, column 1: 1F0 is beyond the 1 stage (plan.pp x plan.pp_chunks)");
  expect_contains(check("0F0,0B0\n0F1,0B1\n", 2, 2), "no row runs micro-batch 0 of stage 1");
  expect_contains(
      check("0F0,0B0,1F0\n1F0,1B0", 2, 1),
      "row 1, column 3: 1F0 is in row 1; expected row 2, which runs most of micro-batch 0 of "
      "stage 1");
  expect_contains(check("0F0,0B0", 1, 1, false), "backward action of a forward-only program");
}

TEST(Schedule, InterleavedEqualsThatOfPyTorch) {
  // torch.distributed.pipelining's ScheduleInterleaved1F1B for 2 ranks of 2 stages and 4
  // micro-batches, and for 3 ranks of 2 stages and 6.
  EXPECT_EQ(to_csv(interleaved_one_f_one_b(2, 2, 4)),
            "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n"
            "1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3\n");
  const Schedule three = interleaved_one_f_one_b(3, 2, 6);
  EXPECT_EQ(to_csv({.ranks = {three.ranks[0]}, .source = ""}),
            "0F0,0F1,0F2,3F0,3F1,3F2,0F3,0F4,3B0,0F5,3B1,3F3,3B2,3F4,0B0,3F5,0B1,0B2,3B3,3B4,3B5,"
            "0B3,0B4,0B5\n");
  EXPECT_EQ(parse_csv(to_csv(three), "s.csv"), three);
  EXPECT_EQ(owners_of(three, 3, 2), (std::vector<int>{0, 1, 2, 0, 1, 2}));
}

TEST(Schedule, InterleavedOverlapHasAForwardPassMoreAhead) {
  const Schedule s = interleaved_overlap(2, 2, 4);
  EXPECT_EQ(to_csv(s),
            "0F0,0F1,2F0,2F1,0F2,(0F3;2B0)OVERLAP_F_B,(2F2;2B1)OVERLAP_F_B,"
            "(2F3;0B0)OVERLAP_F_B,0B1,2B2,2B3,0B2,0B3\n"
            "1F0,1F1,3F0,(3F1;3B0)OVERLAP_F_B,(1F2;3B1)OVERLAP_F_B,(1F3;1B0)OVERLAP_F_B,"
            "(3F2;1B1)OVERLAP_F_B,(3F3;3B2)OVERLAP_F_B,3B3,1B2,1B3\n");
  // One pair per forward pass after the warm-up, which has one pass more than in `interleaved`.
  for (int ranks : {1, 2, 4}) {
    const Schedule overlap = interleaved_overlap(ranks, 3, 4 * ranks);
    const Schedule apart = interleaved_one_f_one_b(ranks, 3, 4 * ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const auto ahead = [&](const Schedule& schedule) {
        const std::vector<Action>& row = schedule.ranks[rank];
        return std::find_if(row.begin(), row.end(), [](const Action& a) { return a.kind == 'B'; }) -
               row.begin() - 1;
      };
      EXPECT_EQ(ahead(overlap), ahead(apart) + 1) << ranks << " " << rank;
      const auto pairs = std::count_if(overlap.ranks[rank].begin(), overlap.ranks[rank].end(),
                                       [](const Action& a) { return a.overlaps_next; });
      EXPECT_EQ(pairs, 3 * 4 * ranks - ahead(overlap));
    }
  }
  expect_contains(failure([] { static_cast<void>(interleaved_overlap(4, 2, 9)); }),
                  "interleaved-overlap runs 9 micro-batches on 4 ranks in 2 rounds");
}

/// Runs all rows at once, each in its order, every action as soon as its inputs exist. Returns
/// whether all rows end.
bool ends(const Schedule& s, int stages) {
  std::set<std::tuple<char, int, int>> done;
  std::vector<size_t> next(s.ranks.size(), 0);
  for (bool more = true; more;) {
    more = false;
    for (size_t rank = 0; rank < s.ranks.size(); ++rank) {
      while (next[rank] < s.ranks[rank].size()) {
        const Action& a = s.ranks[rank][next[rank]];
        const bool forward = a.kind == 'F';
        const int needs = forward ? a.stage - 1 : a.stage + 1;
        if (needs >= 0 && needs < stages && !done.contains({a.kind, needs, a.micro_batch})) break;
        done.insert({a.kind, a.stage, a.micro_batch});
        ++next[rank];
        more = true;
      }
    }
  }
  for (size_t rank = 0; rank < s.ranks.size(); ++rank) {
    if (next[rank] != s.ranks[rank].size()) return false;
  }
  return true;
}

TEST(Schedule, SeveralStagesPerRankAreValidAndEnd) {
  int made = 0;
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (int chunks = 1; chunks <= 4; ++chunks) {
      const int stages = ranks * chunks;
      const std::vector<int> owners = stage_owners("interleaved", ranks, chunks);
      for (int n = 1; n <= 14; ++n) {
        const Schedule evaluation = forward_only(owners, ranks, n);
        EXPECT_NO_THROW(validate(evaluation, ranks, n, false, chunks));
        EXPECT_TRUE(ends(evaluation, stages)) << ranks << " " << chunks << " " << n;
        if (n % std::max(1, n / ranks) != 0) {
          expect_contains(
              failure([&] { static_cast<void>(interleaved_one_f_one_b(ranks, chunks, n)); }),
              "expected equal rounds");
          continue;
        }
        const Schedule s = make_schedule("interleaved", ranks, n, chunks);
        EXPECT_NO_THROW(validate(s, ranks, n, true, chunks)) << ranks << " " << chunks << " " << n;
        EXPECT_TRUE(ends(s, stages)) << ranks << " " << chunks << " " << n;
        EXPECT_EQ(owners_of(s, ranks, chunks), owners);
        const Schedule overlap = make_schedule("interleaved-overlap", ranks, n, chunks);
        EXPECT_NO_THROW(validate(overlap, ranks, n, true, chunks))
            << ranks << " " << chunks << " " << n;
        EXPECT_EQ(owners_of(overlap, ranks, chunks), owners);
        ++made;
      }
    }
  }
  EXPECT_GT(made, 150);
}

TEST(Schedule, StagesOfARankKeepTheirOrder) {
  auto check = [](const char* text, int ranks, int n, int chunks) {
    const Schedule s = parse_csv(text, "s.csv");
    return failure([&] { validate(s, ranks, n, true, chunks); });
  };
  EXPECT_EQ(check("0F0,1F0,1B0,0B0", 1, 1, 2), "");
  // The first and the last stage on one rank, as in the V schedules; backward passes in halves.
  EXPECT_EQ(check("0F0,3F0,3I0,0I0,3W0,0W0\n1F0,2F0,2I0,2W0,1I0,1W0\n", 2, 1, 2), "");
  expect_contains(check("1F0,0F0,1B0,0B0", 1, 1, 2),
                  "row 1, column 1: 1F0 comes before 0F0 of the same rank");
  expect_contains(check("0F0,1F0,0B0,1B0", 1, 1, 2),
                  "column 3: 0B0 comes before the backward of stage 1 of the same rank");
  expect_contains(check("0F0,2F0,2B0,0B0\n1F0,1B0,3F0,3B0\n", 2, 1, 2),
                  "row 2, column 2: 1B0 comes before the backward of stage 3");
  expect_contains(check("0F0,1F0,1B0,0B0,1F1,0F1,1B1,0B1", 1, 2, 2),
                  "1F1 comes before 0F1 of the same rank");
  expect_contains(check("0F0,1F0,1B0,0B0,0F1,1F1,0B1,1B1", 1, 2, 2),
                  "0B1 comes before the backward of stage 1");
  expect_contains(check("0F0,0B0,1F0,1B0", 1, 1, 2), "0B0 comes before the backward of stage 1");
  expect_contains(
      check("0F0,1F0,1I0,0B0", 1, 1, 2),
      "row 1, column 3: 1I0 is the last cell of micro-batch 0 of stage 1, which runs 'FI'");
}

/// Least number of micro-batches, from a given one on, that a schedule runs: no number in between
/// works.
TEST(Schedule, FittingMicroBatchesAreTheLeastThatItRuns) {
  for (const BuiltIn& built_in : built_in_schedules()) {
    for (const int ranks : {2, 4}) {
      const int chunks = built_in.chunks > 0 ? built_in.chunks : 2;
      for (int least = 1; least <= 12; ++least) {
        const int fitting = fitting_micro_batches(built_in.name, ranks, chunks, least);
        for (int n = least; n <= fitting; ++n) {
          EXPECT_EQ(failure([&] { static_cast<void>(built_in.make(ranks, chunks, n)); }).empty(),
                    n == fitting)
              << built_in.name << " of " << n;
        }
      }
    }
  }
  const std::string path = testing::TempDir() + "fit.csv";
  write_file_atomic(path, "0F0,0F1,0B0,0B1\n");
  EXPECT_EQ(fitting_micro_batches(path, 1, 1, 1), 2);
  expect_contains(failure([&] { static_cast<void>(fitting_micro_batches(path, 1, 1, 3)); }),
                  "runs 2 micro-batches; expected at least the 3 of this step");
}

TEST(Schedule, IsFoundByNameOrReadFromAFile) {
  EXPECT_EQ(make_schedule("interleaved", 2, 4, 3), interleaved_one_f_one_b(2, 3, 4));
  expect_contains(failure([] { static_cast<void>(make_schedule("gpipe", 2, 4, 2)); }),
                  "got 2; gpipe runs one stage per rank; try plan.pp_schedule: interleaved");
  EXPECT_EQ(make_schedule("1f1b", 3, 5), one_f_one_b(3, 5));
  EXPECT_EQ(make_schedule("gpipe", 3, 5), gpipe(3, 5));
  expect_contains(failure([] { static_cast<void>(make_schedule("2f2b", 2, 2)); }),
                  "expected 1f1b, gpipe, interleaved, interleaved-overlap, zb-h1, zb-v, dualpipev, "
                  "dualpipe, or a .csv file");
  for (const auto& [name, meant] : {std::pair{"1F1B", "1f1b"},
                                    {"zbv", "zb-v"},
                                    {"GPipe", "gpipe"},
                                    {"dualpipe_v", "dualpipev"},
                                    {"zb_h1", "zb-h1"}}) {
    expect_contains(failure([name = name] { static_cast<void>(make_schedule(name, 2, 4, 1)); }),
                    fmt::format("got '{}'; expected 1f1b", name));
    expect_contains(failure([name = name] { static_cast<void>(make_schedule(name, 2, 4, 1)); }),
                    fmt::format("or a .csv file; did you mean {}?", meant));
  }
  expect_contains(failure([] { static_cast<void>(make_schedule("zb-v", 2, 4)); }),
                  "got 1; zb-v runs 2 stages per rank; try plan.pp_chunks: 2");
  EXPECT_EQ(stage_owners("zb-v", 3, 2), (std::vector<int>{0, 1, 2, 2, 1, 0}));
  EXPECT_EQ(owners_of(zero_bubble_v(3, 4), 3, 2), stage_owners("zb-v", 3, 2));
  expect_contains(failure([] { static_cast<void>(make_schedule("/no/such.csv", 2, 2)); }),
                  "/no/such.csv");
}

}  // namespace
}  // namespace hocket::parallel
