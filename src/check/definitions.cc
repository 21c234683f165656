// SPDX-License-Identifier: Apache-2.0
// Implements: Reference (reference.h), definitions. An op that is defined by a small graph has the
// terms of that graph. They are made where the step applies the op, inner ops first, so that two
// ids never need to be merged: an application gets an alias, or is an alias of its graph's outputs.
#include "base/error.h"
#include "check/reference.h"

namespace hocket::check {

/// Evaluates the graph of a definition to terms.
class Reference::TermBuilder : public ops::Definition {
 public:
  /// `make`: inner applications are made, with its node and micro-batch; null: they are only looked
  /// up, and the first that does not occur ends the search.
  TermBuilder(Reference& reference, std::span<const ExprId> in, const Application* make)
      : ref_(reference), make_(make), values_(in.begin(), in.end()) {}

  /// Keeps application number `application` for the caller (see `last`) instead of making it.
  void hold(int application) { held_ = application; }

  std::vector<int> apply(std::string_view op, graph::Attrs attrs, std::vector<int> in) override {
    Inner inner;
    inner.key = ref_.keys.intern(op, attrs);
    const ops::Op* const rules = ref_.keys[inner.key].rules;
    HOCKET_CHECK(rules != nullptr, "a definition applies the unknown op {}", op);
    std::vector<graph::TensorType> in_types;
    for (int value : in) {
      inner.in.push_back(values_[value]);
      in_types.push_back(type(value));
    }
    for (const graph::TensorType& type : rules->infer(attrs, in_types)) {
      inner.out.push_back(ref_.types.intern(type));
    }
    std::vector<ExprId> out(inner.out.size(), kUnwritten);
    if (applications_++ == held_) {
      last_ = inner;
    } else if (!failed_) {
      make_outputs(*rules, inner, &out);
    }
    std::vector<int> values;
    for (size_t i = 0; i < out.size(); ++i) {
      values.push_back(static_cast<int>(values_.size()));
      values_.push_back(out[i]);
      types_.push_back({values.back(), inner.out[i]});
    }
    return values;
  }

  const graph::TensorType& type(int value) const override {
    for (const auto& [made, type] : types_) {
      if (made == value) return ref_.types[type];
    }
    return ref_.types[ref_.terms[values_[value]].type];
  }

  struct Inner {
    int32_t key = -1;
    std::vector<ExprId> in;
    std::vector<TypeId> out;
  };
  const Inner& last() const { return last_; }
  int applications() const { return applications_; }
  bool failed() const { return failed_; }
  ExprId value(int number) const { return values_[number]; }

 private:
  void make_outputs(const ops::Op& rules, const Inner& inner, std::vector<ExprId>* out) {
    switch (rules.meaning) {
      case Meaning::sum:
        (*out)[0] = ref_.terms.sum(inner.in[0], inner.in[1]);
        return;
      case Meaning::identity:
        (*out)[0] = inner.in[0];
        return;
      case Meaning::empty:
        (*out)[0] = kZero;
        return;
      default:
        break;
    }
    const AppId app =
        make_ ? ref_.apply(inner.key, inner.in, inner.out, *make_) : ref_.find(inner.key, inner.in);
    failed_ = app < 0;
    for (size_t i = 0; i < out->size() && !failed_; ++i) {
      (*out)[i] = ref_.terms.output(app, static_cast<int32_t>(i));
    }
  }

  Reference& ref_;
  const Application* make_;
  std::vector<ExprId> values_;
  std::vector<std::pair<int, TypeId>> types_;
  Inner last_;
  int held_ = -1;
  int applications_ = 0;
  bool failed_ = false;
};

AppId Reference::apply(int32_t key, std::span<const ExprId> in, std::span<const TypeId> out,
                       const Application& where) {
  // An op that expands has no application of its own: it is an alias of its graph's outputs. A
  // primitive op is made, and the last application of its graph becomes an alias of it.
  if (const AppId known = terms.find(key, in); known >= 0) return known;
  const ops::Op& op = *keys[key].rules;
  const auto note = [&](AppId id) {
    Application& application = terms.app(id);
    application.node = where.node;
    application.micro_batch = where.micro_batch;
    application.route = where.route;
    return id;
  };
  std::vector<int> inputs;
  for (size_t i = 0; i < in.size(); ++i) {
    inputs.push_back(static_cast<int>(i));
  }
  const graph::Attrs attrs = keys[key].attrs;
  if (op.define && op.defined == ops::Defined::expands) {
    TermBuilder graph(*this, in, &where);
    std::vector<ExprId> outputs;
    for (int value : op.define(graph, attrs, inputs)) {
      outputs.push_back(graph.value(value));
    }
    if (!outputs.empty()) {
      return note(terms.alias(key, in, outputs));
    }
  }
  bool made = false;
  const AppId app = note(terms.apply(key, in, out, &made));
  if (op.define && op.defined == ops::Defined::alias) {
    // The first pass only counts applications, by look-ups.
    TermBuilder dry(*this, in, nullptr);
    if (!op.define(dry, attrs, inputs).empty()) {
      TermBuilder graph(*this, in, &where);
      graph.hold(dry.applications() - 1);
      op.define(graph, attrs, inputs);
      const TermBuilder::Inner& last = graph.last();
      if (terms.find(last.key, last.in) < 0) {
        std::vector<ExprId> outputs;
        for (size_t i = 0; i < last.out.size(); ++i) {
          outputs.push_back(terms.output(app, static_cast<int32_t>(i)));
        }
        note(terms.alias(last.key, last.in, outputs));
      }
    }
  }
  return app;
}

AppId Reference::find(int32_t key, std::span<const ExprId> in) {
  // A program may apply an op whole that the step applies in parts; all parts must then occur.
  if (const AppId known = terms.find(key, in); known >= 0) return known;
  const ops::Op* const op = keys[key].rules;
  if (!op || !op->define || op->defined != ops::Defined::expands) return -1;
  for (ExprId expr : in) {
    if (expr < 0 || terms[expr].type < 0) return -1;
  }
  std::vector<int> inputs;
  for (size_t i = 0; i < in.size(); ++i) {
    inputs.push_back(static_cast<int>(i));
  }
  const std::vector<ExprId> terms_in(in.begin(), in.end());
  const graph::Attrs attrs = keys[key].attrs;
  TermBuilder graph(*this, terms_in, nullptr);
  std::vector<ExprId> outputs;
  for (int value : op->define(graph, attrs, inputs)) {
    outputs.push_back(graph.value(value));
  }
  if (graph.failed() || outputs.empty()) return -1;
  return terms.alias(key, terms_in, outputs);
}

}  // namespace hocket::check
