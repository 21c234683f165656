// SPDX-License-Identifier: Apache-2.0
// What an op is: shapes, legal layouts, gradient, cost, traits and sample cases, all in one file
// per op. From these follow parity, finite-difference and layout tests, lowering, check and
// simulation.
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

/// One application of an op on one rank: what its cost depends on.
struct Call {
  const Attrs& attrs;
  std::span<const TensorType> in, out;  ///< local types
  /// Experts of the whole tensors, of which the local types may have a part; 0: as many as these.
  /// Even routing brings to a rank with E' of E experts E'/E of the rows.
  int64_t experts = 0;
  /// The table that symbols among the dims refer to. Work counts with what they are expected to be,
  /// workspace with their bounds.
  std::span<const graph::Symbol> symbols = {};
};

/// Arithmetic and memory traffic (reads + writes) of one application.
struct Work {
  double flops = 0;
  int64_t bytes = 0;
};

/// Work and workspace of one application, see Op.
struct Cost {
  double flops = 0;
  int64_t bytes = 0;
  int64_t workspace = 0;
};

/// How fast a device does the arithmetic of an op (cost/cluster.h, efficiency).
enum class CostClass : uint8_t {
  memory,     ///< element by element: memory traffic or the vector units bound it
  matmul,     ///< matrix products
  attention,  ///< products of blocks with a softmax between them
};

/// What a person groups ops by. Reports give each family a colour.
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

/// How an op is read as a term of the check. An application means itself; of every other meaning
/// there is one op, which whoever needs it takes by its meaning (`of`).
enum class Meaning : uint8_t {
  application,
  sum,            ///< of its two inputs
  identity,       ///< its one input, unchanged
  empty,          ///< the sum of nothing: no inputs, attribute `type` says the type of the output
  merge_softmax,  ///< two parts of one result under Monoid::softmax: (o, lse, o, lse) -> (o, lse)
  merge_max,      ///< two parts of one result under Monoid::max
  regroup,        ///< one routed tensor in chunks of tokens, in other chunks of them
};
inline constexpr size_t kNumMeanings = 7;

/// Which outputs of an op that routes tokens to experts are what; none if `counts` is negative.
struct Routing {
  int counts = -1;  ///< rows per expert, of the tokens at hand: i64[E]
  int row_of = -1;  ///< numbers of rows among those of the rank's own tokens
};

/// How to fill one input of a sample case.
struct Fill {
  enum class Kind : uint8_t {
    normal,     ///< N(0, scale)
    uniform,    ///< U(lo, hi), floating point
    integers,   ///< U{lo..hi}
    documents,  ///< positions: packed documents of random lengths, each 0,1,2,…
    counting,   ///< positions: one document
    targets,    ///< integers in [0, hi) with some -100 (ignored)
    routes,     ///< rows of top_k distinct integers in {lo..hi}
    from_op,    ///< made by Sample::chain
    constant,   ///< every element is `lo`
  } kind = Kind::normal;
  double lo = 0, hi = 1, scale = 1;
};

/// An op that makes values of a sample from others before the sampled op runs.
struct ChainStep {
  std::string op;
  Attrs attrs;
  std::vector<int> in;   ///< indices of sample values
  std::vector<int> out;  ///< for every output of the op: the sample value it becomes, or -1
};

/// One case for the generic harnesses. The first inputs of the op are the first values, in order;
/// further values only feed `chain`. Values of kind from_op are made by `chain`.
struct Sample {
  std::string name;
  Attrs attrs;
  std::vector<TensorType> types;  ///< of the values
  std::vector<Fill> fills;
  std::vector<ChainStep> chain;
  double fd_tolerance = 1e-6;  ///< relative error against finite differences in fp64
  int num_inputs = -1;         ///< inputs of the op among the values; -1: all
  bool smooth = true;          ///< false: it rounds, so that differences say nothing of a gradient

  /// Types of the op's inputs.
  std::span<const TensorType> inputs() const {
    return std::span(types).first(num_inputs < 0 ? types.size() : static_cast<size_t>(num_inputs));
  }
};

/// A letter whose parts are not added up.
struct Contraction {
  char letter = 0;
  Monoid monoid = Monoid::sum;
};

/// Of a contracted letter, the indices that an output needs: those that `of` names for the indices
/// of `by`, a letter of the output. Parts that have them all are all of the result.
struct Support {
  char letter = 0;
  int output = 0;
  char by = 0;
  /// `indices` of `by` are not empty; `size`: of `letter`.
  graph::Run (*of)(const Attrs& attrs, graph::Run indices, int64_t size) = nullptr;
};

/// Index notation for legal layouts: one letter per dim of every operand, e.g. linear is
/// "tk,fk->tf". What has a letter may be cut along it, if `split` lists the letter: the op then
/// acts on any of its indices, in any order, and an output that lacks the letter becomes a part of
/// the result (Monoid). An input that is itself a sum over a letter is written "e/t": with some
/// indices of t it has their addends. A scalar [1] is written ".". Alternatives for other ranks are
/// separated by '|'; "*" as a whole stands for any number of operands, all of them whole. `linear`
/// lists, per input, '1' if the op is linear in it, so that a partial input (all others complete)
/// gives partial outputs; with `linear_jointly` (add) all inputs must be partial together.
struct LayoutRule {
  const char* notation;
  const char* split;
  const char* linear = "";
  bool linear_jointly = false;
  /// Letters of `split` where it matters which indices they are: the piece must be one run of them,
  /// and the kernel is told where it begins (KernelArgs::begins) unless at 0.
  const char* positional = "";
  std::vector<Contraction> contractions = {};
  std::vector<Support> support = {};
  /// Of an op that acts_by_element: where all elements are zero, so is what it makes of them.
  bool keeps_zero = false;

  bool is_positional(char letter) const;
  Monoid monoid(char letter) const;
  /// Null: an output that lacks the letter needs all of its indices.
  const Support* support_of(char letter, int output) const;
};

/// Placements of all inputs and outputs of one legal signature on one axis.
struct AxisSignature {
  std::vector<Placement> in, out;
  char letter = 0;  ///< that is split, if one is
  /// Letters that support ties to it are split with it: legal if no part lacks anything
  /// (cut_support).
  bool tied = false;
};

/// Given to Op::define: builds a small graph over values, of which the op's inputs are the first.
class Definition {
 public:
  virtual ~Definition() = default;
  /// Applies an op; returns its outputs.
  virtual std::vector<int> apply(std::string_view op, Attrs attrs, std::vector<int> in) = 0;
  virtual const TensorType& type(int value) const = 0;
};

/// What the graph of a definition is to the op.
enum class Defined : uint8_t {
  no,       ///< there is none: the op is primitive
  expands,  ///< the same: an application of the op is that of the graph
  also,     ///< the op is primitive, and the last application of the graph is one more name for it
};

/// Given to a gradient rule: appends backward nodes to the graph.
class GradContext {
 public:
  virtual ~GradContext() = default;
  virtual const graph::Node& node() const = 0;
  virtual const graph::Tensor& tensor(TensorId id) const = 0;
  /// Gradient of output i of the node, or kNone if nothing depends on it.
  virtual TensorId grad_out(int i) const = 0;
  /// True when the gradient of input i is wanted.
  virtual bool needs(int i) const = 0;
  /// Adds a backward node; returns its outputs (types inferred, named after the node).
  virtual std::vector<TensorId> emit(std::string op, Attrs attrs, std::vector<TensorId> in) = 0;
  /// As emit, for a node whose output `out` is the gradient of input `input`: if a gradient of
  /// that input exists already and the op can accumulate into `out`, it does so in place.
  virtual std::vector<TensorId> emit_grad(std::string op, Attrs attrs, std::vector<TensorId> in,
                                          int input, int out = 0) = 0;
  /// States that `grad` is a contribution to the gradient of input i.
  virtual void add_grad(int i, TensorId grad) = 0;
};

/// An op that brings a value into codes which are fewer bytes to move, or back. The check follows
/// codes as what they encode; what a lossy codec gives back bears its mark (`~int8`).
struct Codec {
  const char* name = nullptr;  ///< null: the op is none
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
  graph::OutputSet accumulates = {};  ///< outputs that can be added to an accumulator
  /// Pairs (input, output) that share a buffer: the op updates the input in place.
  std::vector<std::pair<int, int>> inplace = {};
  /// Pairs (input, output) that may share a buffer: the kernel writes an element of the output
  /// after it has read what it needs of the input there.
  std::vector<std::pair<int, int>> may_overwrite = {};
  /// Indices of inputs with respect to which the gradient test differentiates (by default all
  /// floating-point inputs).
  std::vector<int> fd_inputs = {};

  // Traits: what others need to know, so that nobody knows an op by its name.
  /// Bytes that the kernel may touch besides its inputs and outputs, planned in the arena; scratch
  /// of threads is counted for attribute `threads` of them (default kScratchThreads): a kernel uses
  /// no more threads than its workspace has room for, and its result does not depend on their
  /// number.
  int64_t (*workspace)(const Call&) = nullptr;
  CostClass cost_class = CostClass::memory;
  Family family = Family::elementwise;
  /// FLOPs that the mathematics of the model asks for, of the whole forward node (docs/outputs.md);
  /// null: none are counted. `mean_keys`: keys that a query sees on average, 0: as the attributes
  /// say.
  double (*model_flops)(const Attrs&, std::span<const TensorType> in, double mean_keys) = nullptr;
  bool cheap_to_repeat =
      false;  ///< much memory for little arithmetic: recompute=selective repeats it
  Meaning meaning = Meaning::application;
  Routing routing = {};
  Codec codec = {};
  /// Its kernels take operands with gaps between elements (kernels::TensorRef::strides).
  bool follows_strides = false;
  /// Its kernels take elements of every type as they are. Those of other ops compute in at least
  /// f32: on copies of operands that are shorter, for which their workspace has room (cost_of).
  bool takes_any_type = false;

  /// The op by other ops, none of which comes back to it: its outputs for the inputs `in`, equal up
  /// to rounding. With Defined::also they are all outputs of one application. Empty: with these
  /// inputs the op is primitive.
  std::vector<int> (*define)(Definition&, const Attrs&, std::span<const int> in) = nullptr;
  Defined defined = Defined::no;
};

/// Whether an application on these inputs is told how many routed rows there are (i64 counts). One
/// that is not touches as many as its types hold, however few came.
bool reads_counts(std::span<const TensorType> in);
/// True of plain floating-point elements of one or two bytes.
bool is_short(const TensorType& type);
/// The workspace alone, rounded up to 64 bytes, with room for f32 copies of short operands.
int64_t workspace_of(const Op& op, const Call& call);
/// Work and workspace of one application. Error: a symbol that is not in the table of the call.
Cost cost_of(const Op& op, Call call);
/// The workspace alone, by name. Error if there is no such op.
int64_t workspace_bytes(std::string_view op, const Attrs& attrs, std::span<const TensorType> in,
                        std::span<const TensorType> out);

const Op& find(std::string_view name);  ///< throws Error that lists all ops
const Op* find_or_null(std::string_view name);
const Op& of(Meaning meaning);  ///< the op of a meaning other than application
const std::vector<const Op*>& all();

/// The operands of an op as letters of its index notation, for operands of these ranks.
struct Letters {
  bool any = false;                  ///< no notation: any number of operands, all of them whole
  std::vector<std::string> in, out;  ///< a letter per dim; "" for a scalar
  std::vector<std::string> in_partial_of;  ///< by input: the letter that it is a sum over, or ""
  std::vector<size_t> dims_out;            ///< by output: number of dims
};
/// Throws Error when the notation has no alternative for these ranks.
Letters letters(const Op& op, std::span<const TensorType> in, std::span<const TensorType> out);

/// Where an output has a letter that no input has: output and dim; -1 if none does.
std::pair<int, int> place_in_outputs(const Letters& letters, char letter);
/// True if the op makes outputs of these types. Of a letter that no input has, and that it takes by
/// position, outputs may be a part. Throws Error for inputs that it does not take.
bool makes(const Op& op, const Attrs& attrs, std::span<const TensorType> in,
           std::span<const TensorType> out);
/// True if an op acts on every element of operands with these dims (letters) by itself, wherever it
/// is, and puts the results in the same place or adds them up: then it acts on tensors that lie one
/// after the other in one operand as on each of them.
bool acts_by_element(const LayoutRule& rule, const Letters& letters, std::string_view dims);

/// The graph of a definition, one level deep: inner ops may have definitions of their own.
struct Unfolded {
  struct Step {
    const Op* op = nullptr;
    Attrs attrs;
    std::vector<int> in, out;  ///< values
  };
  std::vector<TensorType> types;  ///< of the values; the op's inputs are the first
  std::vector<Step> steps;        ///< in an order in which they can run
  std::vector<int> out;           ///< values that are the op's outputs
};
/// Nothing (no outputs) where the op is primitive.
Unfolded unfold(const Op& op, const Attrs& attrs, std::span<const TensorType> in);
/// Unfolds every sample of every op down to primitive ones, as is done once with all ops when the
/// first of them is asked for. Error if a definition comes back to itself, applies what is no op,
/// or gives other types than the op.
void check_definitions(const std::vector<Op>& ops);

/// All legal signatures on one axis for operands of these ranks, replicated first. Accumulators
/// (see graph::Node::accumulate) are not among the operands: they follow their output. Last come
/// those that split one letter that the op takes by position (the kernel is told where the piece
/// begins), where support ties several (queries and keys) one of them alone. Parts under
/// Monoid::softmax are two outputs that belong together: no signature splits such a letter.
std::vector<AxisSignature> signatures(const Op& op, std::span<const TensorType> in,
                                      std::span<const TensorType> out);

/// The first positional letter that support ties to this one; the letter itself if none does.
char tied(const LayoutRule& rule, char letter);

/// What an even split of `letter` and those that support ties to it cuts off from what needs it: "t
/// in [4, 8) needs s in [0, 8)". "" if nothing. `part`: indices of such a letter in each part.
std::string cut_support(const Op& op, const Attrs& attrs, char letter,
                        const std::function<int64_t(char)>& part);

}  // namespace hocket::ops
