// SPDX-License-Identifier: Apache-2.0
// The record of an op: shapes, legal layouts, gradient, cost, traits and sample cases, one file per
// op. Lowering, check, simulation and the generated parity, gradient and layout tests use it.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/cut.h"
#include "graph/graph.h"
#include "graph/layout.h"
#include "graph/tensor_type.h"

namespace hocket::ops {

using graph::Attrs;
using graph::DType;
using graph::Monoid;
using graph::Placement;
using graph::TensorId;
using graph::TensorType;

/// One application of an op on one rank, for its cost.
struct Call {
  const Attrs& attrs;
  std::span<const TensorType> in, out;  ///< local types
  /// Experts E of the whole tensors; 0: those of the local types. Even routing brings E'/E of the
  /// rows to a rank with E' experts.
  int64_t experts = 0;
  /// Symbols of the dims. Work uses their expected values, workspace their bounds.
  std::span<const graph::Symbol> symbols = {};
};

/// Arithmetic and memory traffic (reads + writes) of one application.
struct Work {
  double flops = 0;
  int64_t bytes = 0;
};

/// Work and workspace of one application; see Op.
struct Cost {
  double flops = 0;
  int64_t bytes = 0;
  int64_t workspace = 0;
};

/// Class of an op by which a device has an efficiency (cost/cluster.h).
enum class CostClass : uint8_t {
  memory,     ///< element by element: memory traffic or the vector units bound it
  matmul,     ///< matrix products
  attention,  ///< products of blocks with a softmax between them
};

/// Group of ops in reports, each with a colour.
enum class Family : uint8_t {
  elementwise,
  products,
  expert_products,
  attention,
  loss,
  embedding,
  routing,
  optimizer,
  moving,
};
const char* to_string(Family family);

/// Meaning of an op as a term of the check. Every meaning but `uninterpreted` has exactly one op,
/// which is found by `of`.
enum class Meaning : uint8_t {
  uninterpreted,  ///< an application is a term of its own
  sum,            ///< the sum of its two inputs
  identity,       ///< its one input, unchanged
  empty,          ///< the empty sum: no inputs, attribute `type` is the output's type
  merge_softmax,  ///< two parts of one result under Monoid::softmax: (o, lse, o, lse) -> (o, lse)
  merge_max,      ///< two parts of one result under Monoid::max
  regroup,        ///< a routed tensor from some chunks of tokens to others
};
inline constexpr size_t kNumMeanings = 7;

/// Outputs of an op that routes tokens to experts; negative `counts`: not such an op.
struct Routing {
  int counts = -1;  ///< output with the rows per expert, of the local tokens: i64[E]
  int row_of = -1;  ///< output with the row numbers of the rank's own tokens
};

/// Distribution of one input of a sample case.
struct Fill {
  enum class Kind : uint8_t {
    normal,     ///< N(0, scale)
    uniform,    ///< U(lo, hi), floating point
    integers,   ///< U{lo..hi}
    documents,  ///< positions: packed documents of random lengths, each 0,1,2,…
    counting,   ///< positions: one document
    halves,     ///< 0 in the first half, 1 in the second
    targets,    ///< integers in [0, hi) with some -100 (ignored)
    routes,     ///< rows of top_k distinct integers in {lo..hi}
    from_op,    ///< made by Sample::chain
    constant,   ///< every element is `lo`
  } kind = Kind::normal;
  double lo = 0, hi = 1, scale = 1;
};

/// An op that computes values of a sample from others before the sampled op runs.
struct ChainStep {
  std::string op;
  Attrs attrs;
  std::vector<int> in;   ///< indices of sample values
  std::vector<int> out;  ///< per output of the op the index of its sample value, or -1
};

/// One case for the generic harnesses. The op's inputs are the first values, in order; further
/// values feed `chain`, which computes those of kind from_op.
struct Sample {
  std::string name;
  Attrs attrs;
  std::vector<TensorType> types;  ///< of the values
  std::vector<Fill> fills;
  std::vector<ChainStep> chain;
  double fd_tolerance = 1e-6;  ///< relative error against finite differences in fp64
  int num_inputs = -1;         ///< number of the op's inputs; -1: all values
  bool smooth = true;          ///< false: it rounds, so finite differences do not apply

  /// Returns the types of the op's inputs.
  std::span<const TensorType> inputs() const {
    return std::span(types).first(num_inputs < 0 ? types.size() : static_cast<size_t>(num_inputs));
  }
};

/// A contracted letter with parts that combine by a monoid other than the sum.
struct Contraction {
  char letter = 0;
  Monoid monoid = Monoid::sum;
};

/// The indices of a contracted letter that an output needs: those that `of` returns for the indices
/// of `by`, a letter of the output. Parts with all of them are the complete result.
struct Support {
  char letter = 0;
  int output = 0;
  char by = 0;
  /// Requires: `indices` of `by` are not empty. `by_size`, `size`: the sizes of `by` and `letter`.
  graph::Run (*of)(const Attrs& attrs, graph::Run indices, int64_t by_size, int64_t size) = nullptr;
  /// The same share of `by` needs the same share of `letter` at every size: it holds of symbols
  /// too.
  bool of_shares = false;
};

/// Index notation for legal layouts: one letter per dim of every operand; linear is "tk,fk->tf".
/// Operands may be cut along the letters of `split`: the op then acts on any indices, in any order,
/// and an output without the letter is partial (Monoid). An input that is itself a sum over a
/// letter is written "e/t": with some indices of t it has their addends. A scalar [1] is ".".
/// Alternatives for other numbers of dims are separated by '|'; "*" alone is any number of whole
/// operands. `linear` has '1' per input in which the op is linear, so that one partial input gives
/// partial outputs; with `linear_jointly` (add) all inputs must be partial together.
struct LayoutRule {
  const char* notation;
  const char* split;
  const char* linear = "";
  bool linear_jointly = false;
  /// Letters of `split` along which the op depends on position: the piece must be one run, and the
  /// kernel gets its offset (KernelArgs::begins) unless that is 0.
  const char* positional = "";
  std::vector<Contraction> contractions = {};
  std::vector<Support> support = {};
  /// For an op that acts_by_element: zeros give zeros.
  bool keeps_zero = false;

  bool is_positional(char letter) const;
  Monoid monoid(char letter) const;
  /// Returns null if an output without the letter needs all of its indices.
  const Support* support_of(char letter, int output) const;
};

/// One legal signature on one axis: placements of all inputs and outputs.
struct AxisSignature {
  std::vector<Placement> in, out;
  char letter = 0;  ///< the split letter; 0: none
  /// Letters tied to it by support are split with it: legal if no part lacks anything
  /// (cut_support).
  bool tied = false;
};

/// Builder of a small graph for Op::define. The op's inputs are the first values.
class Definition {
 public:
  virtual ~Definition() = default;
  /// Applies an op; returns its outputs.
  virtual std::vector<int> apply(std::string_view op, Attrs attrs, std::vector<int> in) = 0;
  virtual const TensorType& type(int value) const = 0;
};

/// Relation of an op to its definition.
enum class Defined : uint8_t {
  no,       ///< none: the op is primitive
  expands,  ///< an application of the op equals that of the graph
  alias,    ///< the op is primitive, and the graph's last application is another name for it
};

/// Context of a gradient rule; appends backward nodes to the graph.
class GradContext {
 public:
  virtual ~GradContext() = default;
  virtual const graph::Node& node() const = 0;
  virtual const graph::Tensor& tensor(TensorId id) const = 0;
  /// Returns the gradient of output i of the node, or kNone if nothing depends on it.
  virtual TensorId grad_out(int i) const = 0;
  /// Returns whether the gradient of input i is needed.
  virtual bool needs(int i) const = 0;
  /// Adds a backward node; returns its outputs (types inferred, named after the node).
  virtual std::vector<TensorId> emit(std::string op, Attrs attrs, std::vector<TensorId> in) = 0;
  /// Adds a node as emit() does, with the gradient of input `input` as its output `out`.
  /// Accumulates in place if a gradient of that input exists and the op can accumulate into `out`.
  virtual std::vector<TensorId> emit_grad(std::string op, Attrs attrs, std::vector<TensorId> in,
                                          int input, int out = 0) = 0;
  /// Adds `grad` as a contribution to the gradient of input i.
  virtual void add_grad(int i, TensorId grad) = 0;
};

/// An encoder of a value into fewer bytes, or its decoder. The check treats codes as their value;
/// a value decoded from a lossy codec keeps its mark (`~int8`).
struct Codec {
  const char* name = nullptr;  ///< null: the op is no codec
  enum class Role : uint8_t { encode, decode } role = Role::encode;
  bool lossless = false;
};

struct Op {
  std::string name;
  std::string doc;  ///< formula, shapes, source
  std::vector<TensorType> (*infer)(const Attrs&, std::span<const TensorType> in);
  LayoutRule layout;
  Work (*work)(const Call&);
  void (*grad)(GradContext&) = nullptr;  ///< null: not differentiable
  std::vector<Sample> (*samples)() = nullptr;
  graph::OutputSet accumulates = {};  ///< outputs that can accumulate
  /// Pairs (input, output) that share a buffer: the op updates the input in place.
  std::vector<std::pair<int, int>> inplace = {};
  /// Pairs (input, output) that may share a buffer: the kernel writes an output element after its
  /// last read of the input there.
  std::vector<std::pair<int, int>> may_overwrite = {};
  /// Inputs that the gradient test differentiates by; empty: all floating-point inputs.
  std::vector<int> fd_inputs = {};

  // Traits, so that no other code depends on an op's name.
  /// Bytes of scratch memory, planned in the arena. Per-thread scratch counts attribute `threads`
  /// (default kScratchThreads): a kernel uses no more threads than its workspace allows, and its
  /// result does not depend on their number.
  int64_t (*workspace)(const Call&) = nullptr;
  CostClass cost_class = CostClass::memory;
  Family family = Family::elementwise;
  /// Model FLOPs of the whole forward node (docs/outputs.md); null: 0. `mean_keys`: average number
  /// of keys of a query, 0: from the attributes.
  double (*model_flops)(const Attrs&, std::span<const TensorType> in, double mean_keys) = nullptr;
  bool cheap_to_repeat =
      false;  ///< much memory, little arithmetic: recomputed by recompute=selective
  Meaning meaning = Meaning::uninterpreted;
  Routing routing = {};
  Codec codec = {};
  /// Its kernels accept strided operands (kernels::TensorRef::strides).
  bool follows_strides = false;
  /// Its kernels accept every element type directly. Kernels of other ops compute in f32 at least,
  /// on copies of shorter operands in their workspace (cost_of).
  bool takes_any_type = false;
  /// Names the values that it takes from the host, an assumption of proofs; null: none.
  const char* assumes = nullptr;

  /// Definition by other ops, without recursion: returns the outputs for the inputs `in`, equal up
  /// to rounding. With Defined::alias they are all outputs of one application. An empty result: the
  /// op is primitive for these inputs.
  std::vector<int> (*define)(Definition&, const Attrs&, std::span<const int> in) = nullptr;
  Defined defined = Defined::no;
};

/// Returns whether an application on these inputs gets the number of routed rows (i64 counts).
/// Without it, the op processes the bound of its types.
bool reads_counts(std::span<const TensorType> in);
/// Returns whether the elements are plain floating-point numbers of one or two bytes.
bool is_short(const TensorType& type);
/// Returns the workspace, rounded up to 64 bytes, with room for f32 copies of short operands.
int64_t workspace_of(const Op& op, const Call& call);
/// Returns work and workspace of one application. Throws Error for an unknown symbol.
Cost cost_of(const Op& op, Call call);
/// Returns the workspace of the op of this name. Throws Error for an unknown op.
int64_t workspace_bytes(std::string_view op, const Attrs& attrs, std::span<const TensorType> in,
                        std::span<const TensorType> out);

const Op& find(std::string_view name);  ///< throws Error that lists all ops
const Op* find_or_null(std::string_view name);
const Op& of(Meaning meaning);  ///< requires a meaning other than uninterpreted
const std::vector<const Op*>& all();

/// The operands of an op as letters of its index notation.
struct Letters {
  bool any = false;                        ///< no notation: any number of whole operands
  std::vector<std::string> in, out;        ///< a letter per dim; "" for a scalar
  std::vector<std::string> in_partial_of;  ///< per input the letter that it is a sum over, or ""
  std::vector<size_t> dims_out;            ///< per output the number of dims
};
/// Throws Error if the notation has no alternative for these numbers of dims.
Letters letters(const Op& op, std::span<const TensorType> in, std::span<const TensorType> out);

/// Returns (output, dim) of a letter that no input has; -1 if there is none.
std::pair<int, int> place_in_outputs(const Letters& letters, char letter);
/// Returns whether the op makes outputs of the types `out`. Along a positional letter that no input
/// has, outputs may be a part. Throws Error for inputs that it does not accept.
bool makes(const Op& op, const Attrs& attrs, std::span<const TensorType> in,
           std::span<const TensorType> out);
/// Returns whether an op acts on every element of operands with these dims (letters) independently,
/// with the results in the same place or summed. It then acts on concatenated tensors as on each.
bool acts_by_element(const LayoutRule& rule, const Letters& letters, std::string_view dims);

/// The graph of a definition, one level deep; inner ops may have definitions too.
struct Decomposition {
  struct Step {
    const Op* op = nullptr;
    Attrs attrs;
    std::vector<int> in, out;  ///< values
  };
  std::vector<TensorType> types;  ///< of the values, the op's inputs first
  std::vector<Step> steps;        ///< in topological order
  std::vector<int> out;           ///< values of the op's outputs
};
/// Returns no outputs if the op is primitive.
Decomposition decompose(const Op& op, const Attrs& attrs, std::span<const TensorType> in);
/// Decomposes every sample of every op down to primitive ones; called once, on the first look-up of
/// an op. Throws Error if a definition is recursive, applies an unknown op, or gives other types.
void check_definitions(const std::vector<Op>& ops);

/// Returns all legal signatures on one axis, the replicated one first. Accumulators
/// (graph::Node::accumulate) are not operands: they follow their output. The last signatures split
/// one positional letter (the kernel gets the piece's offset); of letters tied by support (queries
/// and keys) only one. No signature splits a letter alone under Monoid::softmax (its parts are two
/// related outputs) or Monoid::none.
std::vector<AxisSignature> signatures(const Op& op, std::span<const TensorType> in,
                                      std::span<const TensorType> out);

/// Returns the first letter of `split` tied to this one by support, or the letter itself.
char tied(const LayoutRule& rule, char letter);

/// Returns the dependency that an even split of `letter` and its tied letters would cut, or "".
/// Text: "t in [4, 8) needs s in [0, 8)". `part`: indices of such a letter in each of `parts`
/// parts.
std::string cut_support(const Op& op, const Attrs& attrs, char letter,
                        const std::function<int64_t(char)>& part, int64_t parts = 2);

}  // namespace hocket::ops
