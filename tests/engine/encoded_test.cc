// SPDX-License-Identifier: Apache-2.0
// Tensors with scales beside their elements, and of parts of a byte, through text, hash, plan,
// memory, cost, check and execution: experts split over ranks, copied, and gathered.
#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "base/error.h"
#include "base/rng.h"
#include "check/check.h"
#include "collectives/comm_op.h"
#include "engine/params.h"
#include "engine/session.h"
#include "kernels/backend.h"
#include "ops/build.h"
#include "parallel/lowering/lower.h"
#include "program/finalize.h"
#include "program/memory.h"

namespace hocket::engine {
namespace {

using graph::TensorId;
using graph::TensorType;

/// Experts of this type, copied to an output.
graph::Graph experts(const TensorType& type) {
  graph::Graph graph;
  graph.num_layers = 1;
  const TensorId weights = graph.param("weights", type, 0, {}, true);
  graph.outputs.push_back(ops::apply(graph, "copy", {}, {weights}, "copied", 0)[0]);
  return graph;
}

class Encoded : public testing::TestWithParam<const char*> {};

TEST_P(Encoded, TensorsAreSplitMovedAndStoredWithoutDecoding) {
  const TensorType type = graph::parse_tensor_type(GetParam());
  const graph::Graph graph = experts(type);
  parallel::Plan plan;
  plan.dp = plan.ep = 2;
  program::Program program = parallel::lower(graph, plan);
  program::finalize(program);
  const check::Verdict verdict = check::check(program, graph);
  ASSERT_TRUE(verdict.ok()) << to_text(verdict);
  EXPECT_TRUE(program::parse_program(program::print(program)) == program);

  const program::Kind& copy = program.kind(program.classes[0].tasks.at(0));
  EXPECT_EQ(copy.op, "copy");
  EXPECT_EQ(copy.in[0].bytes(), type.bytes() / 2);
  EXPECT_EQ(copy.bytes, type.bytes());  // read and written
  const program::Memory memory = program::memory_of(program).at(0);
  EXPECT_EQ(memory.persistent, program::whole_pages(type.bytes() / 2));

  runtime::LocalRanks ranks(2, kernels::cpu_backend(), {});
  const runtime::Store store(ranks);
  const graph::Tensor& weights = graph.tensor(graph.find("weights"));
  std::vector<std::byte> whole(static_cast<size_t>(type.bytes()));
  Rng rng(7);
  for (std::byte& byte : whole) {
    byte = static_cast<std::byte>(rng.below(256));
  }
  scatter(weights, program, store, [&](int64_t begin, int64_t count, void* to) {
    std::memcpy(to, whole.data() + type.bytes_of(begin), static_cast<size_t>(type.bytes_of(count)));
  });
  EXPECT_EQ(gather(weights, program, store), whole);
  runtime::LocalRun run(std::make_shared<const program::Program>(program), store);
  run.step();
  for (int rank : {0, 1}) {
    const auto half = static_cast<std::ptrdiff_t>(whole.size() / 2);
    EXPECT_EQ(std::memcmp(run.executor(rank).output("copied", 0), whole.data() + rank * half,
                          static_cast<size_t>(half)),
              0);
  }
}

TEST_P(Encoded, AnotherBlockOrScaleChangesTheHash) {
  const TensorType type = graph::parse_tensor_type(GetParam());
  parallel::Plan plan;
  const auto hash = [&](const TensorType& other) {
    program::Program program = parallel::lower(experts(other), plan);
    program::finalize(program);
    return program::program_hash(program);
  };
  for (const char* other :
       {"f8_e4m3/f8_e8m0:32[4,6,64]", "f8_e5m2/f8_e8m0:32[4,6,64]", "f8_e4m3/f8_e8m0:16[4,6,64]",
        "f8_e4m3/f32:32[4,6,64]", "f8_e4m3[4,6,64]", "u8[4,6,64]", "i8/f32:32[4,6,64]"}) {
    const TensorType changed = graph::parse_tensor_type(other);
    EXPECT_EQ(hash(type) == hash(changed), type == changed) << other;
  }
}

TEST_P(Encoded, AreGatheredInWholeBlocksAndNeverAdded) {
  const TensorType part = graph::parse_tensor_type(GetParam());
  const comm::Op& gather = comm::op(comm::Id::all_gather);
  for (int64_t dim : {0, 1, 2}) {
    const graph::Attrs attrs{{"dim", dim}};
    const std::vector<TensorType> in{part};
    const TensorType whole = comm::infer(gather, attrs, in, 3)[0];
    EXPECT_EQ(whole.bytes(), 3 * part.bytes());
    // Three members with their number as bytes: the parts lie side by side.
    std::vector<std::vector<std::byte>> memory;
    std::vector<std::vector<std::byte>> results(
        3, std::vector<std::byte>(static_cast<size_t>(whole.bytes())));
    std::vector<void*> pointers;
    for (int member = 0; member < 3; ++member) {
      memory.emplace_back(static_cast<size_t>(part.bytes()), static_cast<std::byte>(member + 1));
    }
    std::vector<std::array<void*, 1>> ins, outs;
    for (int member = 0; member < 3; ++member) {
      ins.push_back({memory[member].data()});
      outs.push_back({results[member].data()});
    }
    std::vector<comm::Operands> members;
    for (int member = 0; member < 3; ++member) {
      members.push_back({ins[member], outs[member]});
    }
    const std::vector<TensorType> out{whole};
    gather.run({&attrs, in, out, members}, 1, 0);
    const int64_t run = part.bytes_of(part.numel() / (dim == 0   ? 1
                                                      : dim == 1 ? int64_t{part.dims[0]}
                                                                 : part.dims[0] * part.dims[1]));
    for (size_t i = 0; i < results[1].size(); ++i) {
      ASSERT_EQ(static_cast<int64_t>(results[1][i]), static_cast<int64_t>(i) / run % 3 + 1)
          << "byte " << i << " of dim " << dim;
    }
    EXPECT_EQ(results[0][0], std::byte{0});
  }
  const std::vector<TensorType> in{part};
  if (part.granule() > 1) {
    EXPECT_THROW(comm::infer(comm::op(comm::Id::all_reduce), {}, in, 3), Error);
  }
  const std::vector<TensorType> two{part, part};
  const bool adds = part.dtype == graph::DType::f16;
  EXPECT_EQ(kernels::cpu_backend()->find("add", kernels::Device::cpu, {two, in}) != nullptr, adds);
}

INSTANTIATE_TEST_SUITE_P(Types, Encoded,
                         testing::Values("f8_e4m3/f8_e8m0:32[4,6,64]", "f4_e2m1/f8_e8m0:32[4,6,64]",
                                         "f4_e2m1/f8_e4m3:16[4,6,64]", "i8/f32:32[4,6,64]",
                                         "i4/f16:32[4,6,64]", "i4[4,6,64]", "f8_e5m2[4,6,64]",
                                         "u8[4,6,64]", "f16[4,6,64]"));

}  // namespace
}  // namespace hocket::engine
