// SPDX-License-Identifier: Apache-2.0
// Implements: derived_rules (rules.h), the rules that follow from running the tasks.
#include "check/rules/rules.h"

namespace hocket::check {

const std::vector<RuleInfo>& derived_rules() {
  // Reported by check.cc, order_checker.cc, hazards.cc, memory.cc, costs.cc and values/.
  static const std::vector<RuleInfo> rules = {
      {"parts-fit", "tasks in parts have blocks that their ops take one by one, all of one size"},
      {"micro-batches", "the program and the reference run equally many micro-batches"},
      {"symbol-table", "the program's symbols are those of the single-device graph"},
      {"send-unmatched", "every send has its receive"},
      {"recv-unmatched", "every receive has its send"},
      {"message-type", "both ends of a message have one type"},
      {"tag-shared", "messages of one tag from a rank to another go one way"},
      {"collective-unmatched", "all members of a group run the same number of its collectives"},
      {"collective-differs", "collectives that meet have one op, attributes and sizes"},
      {"deadlock", "nothing waits in a cycle"},
      {"race", "two accesses to a buffer or to its memory, one of them a write, are ordered"},
      {"read-before-write", "a buffer is written before it is read"},
      {"overwritten", "a buffer that is read still owns its memory"},
      {"expected-rows", "a ragged buffer expects at least the rows of even routing"},
      {"memory-budget", "a rank needs at most the budget"},
      {"named-tensor", "named buffers are local parts of tensors of the single-device graph"},
      {"cost-follows", "the FLOPs and bytes of a kernel are those of its op on its types"},
      {"layout-legal", "the op's layout rule takes the layouts of its inputs"},
      {"begin-fits", "a task gives the right begin of each letter that its op takes by position"},
      {"merge-parts", "a merge takes disjoint parts of one result"},
      {"codec-parts", "an encoder takes one value, a decoder all of its codes"},
      {"codes-summed", "codes are moved and decoded, never added"},
      {"replicas-differ", "replicas of a tensor have equal losses to codecs"},
      {"regroup-parts",
       "a regroup takes all chunks of one routed tensor, each with the sizes of its exchange"},
      {"view-tiled",
       "a read of a base finds parts of one value side by side; of a flat base whole rows of one "
       "tensor, or several tensors"},
      {"pack-fits",
       "an op on several tensors in one buffer acts on every element by itself, and all operands "
       "hold the same tensors in the same places"},
      {"local-size", "a value has the local type that its layout implies"},
      {"sum-layout", "values that are added are partial over the same axes, and cut alike"},
      {"unfinished-sum", "an op reads finished sums, or parts of one"},
      {"reduce-replicated", "a value that is reduced over an axis is not replicated on it"},
      {"reduce-monoid", "a value is reduced by its own reduction: sum or maximum"},
      {"reduce-overlap", "a reduction takes disjoint parts, which fill their result"},
      {"reduce-split", "a value that is reduced over an axis is not split on it"},
      {"gather-layout", "a gathered value is split along that dim, and equal in all else"},
      {"transfer-layout", "a transferred value is finished, and lies where its task says"},
      {"transfer-covers", "giving ranks have all that taking ranks need"},
      {"scatter-layout", "a reduce-scattered value is partial over all axes of the group"},
      {"exchange-axis", "tokens are exchanged over one axis"},
      {"exchange-counts", "sizes are exchanged from a rank's own counts of a routing"},
      {"exchange-sizes", "an exchange uses the sizes of its own routing"},
      {"exchange-layout", "an exchange goes from split by token to split by expert, or back"},
      {"message-rows", "row numbers of a routing stay with the rank that has the rows"},
      {"classes-reduce-only", "where classes that hold different values meet, they sum them"},
      {"classes-differ", "ranks get the same value from all classes that they meet"},
      {"not-in-graph", "every application of an op occurs in the single-device step"},
      {"final-value", "named buffers end the step with the value of the single-device step"},
      {"final-layout", "and in the layout that the host expects"},
      {"result-missing", "every result of the single-device step is kept by some class"},
  };
  return rules;
}

}  // namespace hocket::check
