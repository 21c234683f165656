// SPDX-License-Identifier: Apache-2.0
// Models of Megatron-LM's scripts: equal numbers of parameters on both sides, or refused by name.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.h"
#include "interop/foreign.h"

namespace hocket::interop {
namespace {

Imported import(const std::string& more) {
  return import_megatron(
      "torchrun --nproc-per-node 8 pretrain_gpt.py --num-layers 4 --hidden-size 96 "
      "--num-attention-heads 4 --vocab-size 512 " +
          more + "\n",
      "args.sh", {}, false);
}

TEST(Megatron, ExpertsWithoutAGateAreRefused) {
  const std::string experts = "--num-experts 4 --moe-ffn-hidden-size 192";
  try {
    import(experts);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    EXPECT_NE(std::string(error.what()).find("--num-experts is 4 without --swiglu"),
              std::string::npos);
  }
  for (const char* gate : {" --swiglu", " --quick-geglu"}) {
    const auto model = nlohmann::json::parse(import(experts + gate).config_json);
    EXPECT_EQ(model.at("moe_intermediate_size"), 192) << gate;
  }
}

TEST(Megatron, TypeOfGradients) {
  EXPECT_EQ(import("--bf16").keys.count("train.grad_dtype"), 0u);
  EXPECT_EQ(import("--grad-reduce-in-bf16").keys.count("train.grad_dtype"), 0u);
  EXPECT_EQ(import("--bf16 --grad-reduce-in-bf16").keys.at("train.grad_dtype"), "model");
}

/// A gate by another function has three products, too; only --swiglu makes them narrower by
/// default.
TEST(Megatron, WidthOfMlps) {
  const struct {
    const char* flags;
    int64_t width;
  } kRows[] = {{"--swiglu", 256},
               {"--quick-geglu", 384},
               {"", 256},
               {"--quick-geglu --ffn-hidden-size 128", 128},
               {"--ffn-hidden-size 192", 128}};
  for (const auto& row : kRows) {
    const auto model = nlohmann::json::parse(import(row.flags).config_json);
    EXPECT_EQ(model.at("intermediate_size"), row.width) << row.flags;
  }
}

}  // namespace
}  // namespace hocket::interop
