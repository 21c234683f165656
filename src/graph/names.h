// SPDX-License-Identifier: Apache-2.0
// Names of tensors that the host feeds or reads. A name that ends in a dot is a prefix.
#pragma once

namespace hocket::graph::names {

// Inputs, made by models and autodiff, filled from an engine::Batch.
inline constexpr const char* kTokens = "tokens";        ///< i32[T], per micro-batch
inline constexpr const char* kTargets = "targets";      ///< i32[T], per micro-batch; < 0: none
inline constexpr const char* kPositions = "positions";  ///< i32[T], per micro-batch
inline constexpr const char* kIsToken = "is_token";     ///< i32[T], per micro-batch; 0: padding
/// i64[T], per micro-batch: the number of every token in the training, sequences of a step one
/// after the other, and step after step.
inline constexpr const char* kTokenNumbers = "token_numbers";
inline constexpr const char* kLossScale = "loss_scale";  ///< f64[1], per step
inline constexpr const char* kHyper = "hyper";           ///< f64[n], per step: autodiff::hyper_of

// Losses over answers. A is the number of answers that a micro-batch has room for.
inline constexpr const char* kAnswers =
    "answers";  ///< i32[T], per micro-batch: of a target; -1: none
/// f64[A], per micro-batch: log-probabilities of the answers under the reference.
inline constexpr const char* kReference = "reference_logprobs";
inline constexpr const char* kAnswerWeights = "answer_weights";  ///< f64[A], per micro-batch
inline constexpr const char* kAnswerLengths =
    "answer_lengths";                                        ///< f64[A], per micro-batch: tokens
inline constexpr const char* kAnswerSides = "answer_sides";  ///< i32[A], per micro-batch: of KTO
inline constexpr const char* kDivergence = "divergence";     ///< f64[1], per micro-batch: of KTO

// Losses of reinforcement learning, of every target; f64[T], per micro-batch. Of samples, S of a
// micro-batch: f64[S].
inline constexpr const char* kOldLogprobs = "old_logprobs";  ///< that the ratio is anchored at
inline constexpr const char* kReferenceOfTokens = "reference_logprobs_of_tokens";
inline constexpr const char* kAdvantages = "advantages";
inline constexpr const char* kTokenWeights = "token_weights";
inline constexpr const char* kOldValues = "old_values";  ///< of a critic
inline constexpr const char* kReturns = "returns";       ///< likewise
inline constexpr const char* kSampleOldLogprobs = "sample_old_logprobs";
inline constexpr const char* kSampleAdvantages = "sample_advantages";
inline constexpr const char* kSampleWeights = "sample_weights";
inline constexpr const char* kSampleLengths = "sample_lengths";

// Generation (models/build.h, ops/attention_paged.cc, ops/sample.cc). Symbols of its program: T, R,
// B, N, W and C below.
inline constexpr const char* kNewTokens = "new_tokens";            ///< T
inline constexpr const char* kNumSequences = "num_sequences";      ///< R
inline constexpr const char* kTablePages = "table_pages";          ///< B
inline constexpr const char* kNumRows = "num_rows";                ///< N
inline constexpr const char* kMaskWords = "mask_words";            ///< W
inline constexpr const char* kNumChanges = "num_changes";          ///< C
inline constexpr const char* kSequences = "sequences";             ///< i32[T]: of a token
inline constexpr const char* kPageTable = "page_table";            ///< i32[R,B]
inline constexpr const char* kPageCopies = "page_copies";          ///< i32[R,2]
inline constexpr const char* kRows = "rows";                       ///< i32[N]: tokens, -1: none
inline constexpr const char* kSampleSettings = "sample.settings";  ///< f64[N,ops::kNumSettings]
inline constexpr const char* kSampleDraws = "sample.draws";        ///< i64[N,4]
inline constexpr const char* kSampleMask = "sample.mask";          ///< i32[N,W]
inline constexpr const char* kSampleRanges = "sample.ranges";      ///< i32[N,2]
inline constexpr const char* kChangedTokens = "sample.tokens";     ///< i32[C]
inline constexpr const char* kChangeCounts = "sample.counts";      ///< i32[C]
inline constexpr const char* kChangeBiases = "sample.biases";      ///< f64[C]
inline constexpr const char* kSampled = "sampled";                 ///< i32[N]
inline constexpr const char* kSampledLogprobs = "sampled.1";       ///< f64[N,2]
inline constexpr const char* kAlternatives = "sampled.2";          ///< i32[N,K]
inline constexpr const char* kAlternativeLogprobs = "sampled.3";   ///< f64[N,K]

// Outputs.
inline constexpr const char* kValues = "values";  ///< [T,1], per micro-batch: of a critic
inline constexpr const char* kLossOfTokens = "loss.of_tokens";  ///< beside a loss of samples
/// [T,V], per micro-batch; of generation [N,V].
inline constexpr const char* kLogits = "logits";
inline constexpr const char* kLogprobs = "logprobs";               ///< f64[T], per micro-batch
inline constexpr const char* kEntropies = "logprobs.1";            ///< f64[T], per micro-batch
inline constexpr const char* kAnswerLogprobs = "answer_logprobs";  ///< f64[A], per micro-batch
/// Sums over an answer's tokens, f64[A], per micro-batch, with their loss: of mean logits, of
/// entropies, and of misses (ops/token_logprobs.cc).
inline constexpr const char* kAnswerLogits = "answer_logits";
inline constexpr const char* kAnswerEntropies = "answer_entropies";
inline constexpr const char* kAnswerMisses = "answer_misses";
/// Sums over targets, f64[1], per micro-batch, beside a loss of tokens and scaled as that is.
inline constexpr const char* kEntropySum = "entropy_sum";
inline constexpr const char* kMissesSum = "misses_sum";
inline constexpr const char* kGradNorm = "grad_norm";    ///< f64[1], per step, before clipping
inline constexpr const char* kGradOf = "grad.";          ///< of a parameter, per step
inline constexpr const char* kCountsOf = "moe.counts.";  ///< of a layer: i64[E], per micro-batch
/// The experts of every token in a layer, i32[T,K]; an output of generation, an input where its
/// choices are taken again.
inline constexpr const char* kRoutesOf = "moe.routes.";

// States of optimizers, each of a parameter and of its shape: means of the gradient and of its
// square, and the parameter in the type of its update. Files name them so; code reads Tensor::of.
inline constexpr const char* kExpAvgOf = "exp_avg.";
inline constexpr const char* kExpAvgSqOf = "exp_avg_sq.";
inline constexpr const char* kMomentumOf = "momentum_buffer.";
inline constexpr const char* kMasterOf = "master.";

}  // namespace hocket::graph::names
