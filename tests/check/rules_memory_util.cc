// SPDX-License-Identifier: Apache-2.0
// Faults of memory: what is read after its memory went to others, and more memory than was said.
#include "tests/check/rules_util.h"

namespace hocket::check::test {
namespace {

/// The smallest figure for the ragged buffers of class 0 that the check takes.
int64_t least_expected(Edit e) {
  int64_t refused = 0, taken = e.cls().expected_bytes;
  while (taken - refused > 64) {
    e.cls().expected_bytes = (refused + taken) / 128 * 64;
    (e.check().ok() ? taken : refused) = e.cls().expected_bytes;
  }
  return taken;
}

}  // namespace

std::vector<Row> memory_rows() {
  return {
      {"overwritten", "a read after the memory went to others", one_rank,
       [](Edit& e) {
         const BufferId from = e.task("embedding").out[0], to = e.add_like(from);
         e.append(e.make("copy", {}, {from}, {to}));
       }},
      {"arena-expected", "a plan that counts on slightly less than is alive", four_experts,
       [](Edit& e) { e.cls().expected_bytes = least_expected(e) - 64; }},
      {"memory-budget", "a budget that is one byte too small", four_experts,
       [](Edit& e) { e.options.memory_budget = e.check().memory[0].peak - 1; }},
  };
}

}  // namespace hocket::check::test
