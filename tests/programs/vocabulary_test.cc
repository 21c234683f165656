// SPDX-License-Identifier: Apache-2.0
// Embedding and loss with the vocabulary cut over ranks (Megatron-LM's parallel embedding and cross
// entropy). Every rank looks up its own tokens and sums over its own logits. Only a vector of the
// hidden width, or a number, per token crosses ranks.
#include <gtest/gtest.h>

#include "tests/programs/program_builder_util.h"

namespace hocket::test::vocabulary_test {
namespace {

using graph::Attrs;

constexpr int64_t kTokens = 6, kWidth = 4, kVocab = 8;
const Attrs kVocabulary{{"vocab", kVocab}};

/// x = W[ids] and the gradient of W for a gradient of x.
ProgramBuilder embedding(int32_t ranks) {
  ProgramBuilder w({{"tp", ranks}});
  const TensorId ids = w.input("ids", i32({kTokens}));
  const TensorId table = w.input("W", f64({kVocab, kWidth}));
  const TensorId dx = w.input("dx", f64({kTokens, kWidth}));
  const TensorId x = w.apply("x", "embedding", kVocabulary, {ids, table})[0];
  const TensorId dw = w.apply("dW", "embedding_dw", kVocabulary, {ids, dx})[0];
  w.result(x);
  w.result(dw);
  const int64_t part = kVocab / ranks;
  const ProgramBuilder::PieceOffsets mine{{'v', [part](const At& at) { return at[0] * part; }}};
  const BufferId tokens = w.input_buffer(ids);
  const BufferId looked_up = w.output_buffer(x);
  w.task("embedding", kVocabulary, {tokens, w.input_buffer(table, w.split(0, {"tp"}))}, {looked_up},
         mine);
  w.collective("all_reduce", {}, {"tp"}, {looked_up}, {looked_up});
  w.task("embedding_dw", kVocabulary, {tokens, w.input_buffer(dx)},
         {w.output_buffer(dw, w.split(0, {"tp"}))}, mine);
  return w;
}

/// The fused loss of one device, its gradients, and how ranks with parts of W compute them. `cap`:
/// limit of the logits; 0: none.
ProgramBuilder loss(int32_t ranks, double cap = 0) {
  ProgramBuilder w({{"tp", ranks}});
  const TensorId hidden = w.input("h", f64({kTokens, kWidth}));
  const TensorId weight = w.input("W", f64({kVocab, kWidth}));
  const TensorId targets = w.input("y", i32({kTokens}));
  const TensorId scale = w.input("scale", f64({1}));
  Attrs fused{{"grad", int64_t{1}}};
  if (cap > 0) {
    fused.set("softcap", cap);
  }
  const auto out = w.apply("loss", "linear_cross_entropy", fused, {hidden, weight, targets, scale});
  for (TensorId id : out) {
    w.result(id);
  }
  const int64_t part = kVocab / ranks;
  const ProgramBuilder::PieceOffsets mine{{'v', [part](const At& at) { return at[0] * part; }}};
  const Layout rows = w.split(0, {"tp"});
  const BufferId h = w.input_buffer(hidden), y = w.input_buffer(targets),
                 one = w.input_buffer(scale), by = w.input_buffer(weight, rows);
  const TensorType per_token = f64({kTokens});
  const auto over_ranks = [&w](BufferId buffer, const Attrs& attrs) {
    w.collective("all_reduce", attrs, {"tp"}, {buffer}, {buffer});
  };
  const BufferId z = w.step_buffer(f64({kTokens, part})), top = w.step_buffer(per_token),
                 sum = w.step_buffer(per_token);
  const BufferId lse = w.step_buffer(per_token), logit = w.step_buffer(per_token);
  BufferId dz = w.step_buffer(w.type(z));
  const BufferId product = cap > 0 ? w.step_buffer(w.type(z)) : z;
  w.task("linear", {}, {h, by}, {product});
  if (cap > 0) {
    w.task("softcap", {{"cap", cap}}, {product}, {z});
  }
  w.task("rowmax", {}, {z}, {top});
  over_ranks(top, {{"monoid", std::string("max")}});
  w.task("sumexp", {}, {z, top}, {sum});
  over_ranks(sum, {});
  w.task("lse_of", {}, {top, sum}, {lse});
  w.task("pick", kVocabulary, {z, y}, {logit}, mine);
  over_ranks(logit, {});
  w.task("nll", {}, {logit, lse, y, one}, {w.output_buffer(out[0])});
  w.task("dlogits", kVocabulary, {z, y, lse, one}, {dz}, mine);
  if (cap > 0) {
    const BufferId dy = dz;
    dz = w.step_buffer(w.type(z));
    w.task("softcap_bwd", {{"cap", cap}}, {dy, product}, {dz});
  }
  const BufferId dh = w.output_buffer(out[1]);
  w.task("linear_dx", {}, {dz, by}, {dh});
  over_ranks(dh, {});
  w.task("linear_dw", {}, {dz, h}, {w.output_buffer(out[2], rows)});
  return w;
}

const std::vector<ProgramCase>& cases() {
  static const std::vector<ProgramCase> all = {
      {"embedding, vocabulary over two", [] { return embedding(2); }, {"begin"}},
      {"embedding, vocabulary over four", [] { return embedding(4); }, {"begin", "letter"}},
      {"loss, vocabulary over two", [] { return loss(2); }, {"begin", "letter", "monoid"}},
      {"loss, vocabulary over four", [] { return loss(4); }, {"begin", "letter", "monoid"}},
      {"loss below a cap", [] { return loss(2, 1.5); }, {"begin", "letter", "monoid"}},
  };
  return all;
}

TEST(VocabularyParallel, ProvenRunAndSimulated) { expect_proven_run_simulated(cases()); }
TEST(VocabularyParallel, MutantsAreRefusedOrEqual) { expect_mutants_refused_or_equal(cases()); }

}  // namespace
}  // namespace hocket::test::vocabulary_test
