// SPDX-License-Identifier: Apache-2.0
// Implements: memory_cases (rules_util.h), reads of reused memory, wrong expected sizes, and
// exceeded budgets.
#include <stdexcept>

#include "tests/check/rules_util.h"

namespace hocket::check::test {
namespace {

/// Returns the first step buffer of class 0 of a routed type that is (not) ragged.
program::Buffer& routed_buffer(Edit& e, bool ragged) {
  for (program::Buffer& b : e.cls().buffers) {
    if (b.kind == BufferKind::step && b.type.routed() && (b.expected_bytes != kNone) == ragged) {
      return b;
    }
  }
  throw std::runtime_error("no such buffer");
}

/// Adds a buffer like the output of an expert product, with its expected size.
BufferId add_ragged(Edit& e) {
  const BufferId like = e.task("grouped_linear").out[0];
  const BufferId added = e.add_like(like);
  e.buffer(added).expected_bytes = e.buffer(like).expected_bytes;
  return added;
}

}  // namespace

std::vector<FaultCase> memory_cases() {
  return {
      {"overwritten", "a read of reused memory", one_rank,
       [](Edit& e) {
         const BufferId from = e.task("embedding").out[0], to = e.add_like(from);
         e.append(e.make("copy", {}, {from}, {to}));
       }},
      {"has-plan", "no step buffer has a place", one_rank,
       [](Edit& e) {
         e.cls().arena_bytes = 0;
         for (program::Buffer& b : e.cls().buffers) {
           b.offset = kNone;
         }
         for (Task& t : e.cls().tasks) {
           t.workspace = kNone;
         }
       }},
      {"addresses", "an arena of more bytes than a process has addresses", one_rank,
       [](Edit& e) { e.cls().arena_bytes = INT64_MAX; }},
      {"addresses", "an arena of negative size", forward_only,
       [](Edit& e) { e.cls().host_arena_bytes = -1; }},
      {"expected-routed", "a dense step buffer that expects less than it holds", four_experts,
       [](Edit& e) { e.buffer(e.task("embedding").out[0]).expected_bytes = 1; }},
      {"expected-routed", "an input that expects less than the host writes", four_experts,
       [](Edit& e) { e.buffer(e.task("embedding").in[0]).expected_bytes = 4; }},
      {"expected-rows", "a ragged buffer that expects less than even routing brings", four_experts,
       [](Edit& e) {
         program::Buffer& b = routed_buffer(e, true);
         // Even routing: the tokens of both ranks, 2 experts per token, half of the rows here.
         b.expected_bytes = b.type.dims[1] * b.type.row_size() * size_of(b.type.dtype) - 1;
       }},
      {"expected-rows", "a routed buffer of all experts that expects less than all rows",
       four_experts,
       [](Edit& e) {
         program::Buffer& b = routed_buffer(e, false);
         b.expected_bytes = b.type.bytes() - 1;
       }},
      {"expected-rows", "zeros over all of a ragged buffer", four_experts,
       [](Edit& e) {
         const BufferId to = add_ragged(e);
         e.append(e.make("zero", {{"type", graph::to_string(e.buffer(to).type)}}, {}, {to}));
       }},
      {"expected-rows", "a copy without row counts", four_experts,
       [](Edit& e) {
         const TaskId product = e.find("grouped_linear");
         const BufferId from = e.at(product).out[0], to = add_ragged(e);
         e.insert(product + 1, e.make("copy", {}, {from}, {to}));
       }},
      {"memory-budget", "a budget that is one byte too small", four_experts,
       [](Edit& e) { e.options.memory_budget = e.check().memory[0].planned.total() - 1; }},
  };
}

}  // namespace hocket::check::test
