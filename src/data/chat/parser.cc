// SPDX-License-Identifier: Apache-2.0
// Implements: parse (ast.h), with jinja2's grammar and precedences.
#include <algorithm>
#include <unordered_map>

#include "base/error.h"
#include "base/text.h"
#include "data/chat/ast.h"
#include "data/chat/filters.h"
#include "data/chat/lexer.h"

namespace hocket::data::jinja {
namespace {

using Kind = Token::Kind;
using Op = Expr::Op;

constexpr int kMaxNesting = 150;    // of brackets, blocks and operators without an end in sight
constexpr int kMaxExprDepth = 400;  // of a tree of expressions, a + b + c being 2
constexpr size_t kMaxSource = size_t{4} << 20;

class Parser {
 public:
  Parser(std::string_view source, const std::string& where)
      : where_(where), tokens_(tokenize(source, where)) {
    program_.where = where;
  }

  Program run() {
    program_.body = block({});
    return std::move(program_);
  }

 private:
  // A body whose mentions of special names matter: of a macro (caller, varargs, kwargs) or a loop.
  struct Frame {
    bool loop = false, macro = false;
    bool uses_loop = false, uses_caller = false, uses_varargs = false, uses_kwargs = false;
  };
  class Nested {
   public:
    explicit Nested(Parser* parser) : parser_(parser) {
      if (++parser_->nesting_ > kMaxNesting) {
        parser_->refuse("nested deeper than {} levels", kMaxNesting);
      }
    }
    ~Nested() { --parser_->nesting_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    Parser* parser_;
  };

  // --- tokens

  const Token& now() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> what, Args&&... args) const {
    fail(where_, "line {}: {}", now().line, fmt::format(what, std::forward<Args>(args)...));
  }
  static std::string shown(const Token& token) {
    switch (token.kind) {
      case Kind::data:
        return "text";
      case Kind::block_begin:
        return "'{%'";
      case Kind::block_end:
        return "'%}'";
      case Kind::variable_begin:
        return "'{{'";
      case Kind::variable_end:
        return "'}}'";
      case Kind::text:
        return "a string";
      case Kind::end:
        return "the end of the template";
      default:
        return quote(token.text);
    }
  }
  bool is_op(std::string_view text) const { return now().kind == Kind::op && now().text == text; }
  bool is_name(std::string_view text) const {
    return now().kind == Kind::name && now().text == text;
  }
  Token take() {
    Token token = now();
    if (at_ + 1 < tokens_.size()) {
      ++at_;
    }
    return token;
  }
  bool skip_op(std::string_view text) {
    const bool found = is_op(text);
    if (found) {
      take();
    }
    return found;
  }
  bool skip_name(std::string_view text) {
    const bool found = is_name(text);
    if (found) {
      take();
    }
    return found;
  }
  void expect_op(std::string_view text) {
    if (!skip_op(text)) refuse("got {}; expected '{}'", shown(now()), text);
  }
  void expect_block_end() {
    if (now().kind != Kind::block_end) refuse("got {}; expected '%}}'", shown(now()));
    take();
  }
  std::string expect_name() {
    if (now().kind != Kind::name) refuse("got {}; expected a name", shown(now()));
    return take().text;
  }
  int id(const std::string& name) {
    const auto [found, fresh] = ids_.emplace(name, static_cast<int>(program_.names.size()));
    if (fresh) {
      program_.names.push_back(name);
    }
    return found->second;
  }

  // --- statements

  StmtPtr statement(Stmt::Kind kind, int line) const {
    auto out = std::make_unique<Stmt>();
    out->kind = kind;
    out->line = line;
    return out;
  }

  // Statements up to a tag of one of `ends`, whose name is left as the current token; up to the end
  // of the template without `ends`.
  Block block(const std::vector<std::string_view>& ends) {
    const Nested nested(this);
    Block out;
    for (;;) {
      const int line = now().line;
      if (now().kind == Kind::data) {
        out.push_back(statement(Stmt::Kind::text, line));
        out.back()->text = take().text;
      } else if (now().kind == Kind::variable_begin) {
        take();
        out.push_back(statement(Stmt::Kind::output, line));
        out.back()->exprs.push_back(tuple());
        if (now().kind != Kind::variable_end) refuse("got {}; expected '}}}}'", shown(now()));
        take();
      } else if (now().kind == Kind::block_begin) {
        take();
        if (now().kind != Kind::name) refuse("got {}; expected the name of a tag", shown(now()));
        if (std::find(ends.begin(), ends.end(), now().text) != ends.end()) return out;
        if (StmtPtr made = tag(ends)) {
          out.push_back(std::move(made));
        }
      } else {
        if (!ends.empty()) refuse("the template ends; expected '{{% {} %}}'", ends.front());
        return out;
      }
    }
  }
  /// The same, and the end tag, which has nothing else in it.
  Block body(std::string_view end) {
    expect_block_end();
    Block out = block({end});
    take();
    expect_block_end();
    return out;
  }

  StmtPtr tag(const std::vector<std::string_view>& ends) {
    const Token name = take();
    const std::string& text = name.text;
    if (text == "if") return conditional(name.line);
    if (text == "for") return loop(name.line);
    if (text == "set") return set(name.line);
    if (text == "macro") return macro(name.line);
    if (text == "call") return call_block(name.line);
    if (text == "filter") return filter_block(name.line);
    if (text == "with") return with(name.line);
    if (text == "generation") return generation(name.line);
    if (text == "break" || text == "continue") return jump(name);
    if (text == "print") {
      StmtPtr out = statement(Stmt::Kind::output, name.line);
      do {
        out->exprs.push_back(expression());
      } while (skip_op(","));
      expect_block_end();
      return out;
    }
    --at_;
    if (text.starts_with("end") || text == "else" || text == "elif") {
      refuse("unexpected tag '{}'; expected {}", text,
             ends.empty() ? "no open block" : fmt::format("'{}'", ends.front()));
    }
    refuse(
        "the tag '{}' is not supported; expected if, for, set, macro, call, filter, with, "
        "generation, break, continue or raw",
        text);
  }

  StmtPtr conditional(int line) {
    StmtPtr out = statement(Stmt::Kind::conditional, line);
    for (;;) {
      Branch branch;
      branch.test = tuple(false);
      expect_block_end();
      branch.body = block({"endif", "elif", "else"});
      out->branches.push_back(std::move(branch));
      const std::string end = take().text;
      if (end == "elif") continue;
      if (end == "else") {
        out->branches.push_back({nullptr, body("endif")});
      } else {
        expect_block_end();
      }
      return out;
    }
  }

  StmtPtr loop(int line) {
    StmtPtr out = statement(Stmt::Kind::loop, line);
    out->targets.push_back(target(false, "in"));
    if (!skip_name("in")) refuse("got {}; expected 'in'", shown(now()));
    out->exprs.push_back(tuple(false, "recursive"));
    if (skip_name("if")) {
      out->filter = expression();
    }
    out->recursive = skip_name("recursive");
    expect_block_end();
    frames_.push_back({.loop = true});
    out->body = block({"endfor", "else"});
    out->uses_loop = frames_.back().uses_loop;
    frames_.pop_back();
    if (take().text == "else") {
      out->otherwise = body("endfor");
    } else {
      expect_block_end();
    }
    return out;
  }

  StmtPtr set(int line) {
    StmtPtr out = statement(Stmt::Kind::set, line);
    out->targets.push_back(target(true, ""));
    if (skip_op("=")) {
      out->exprs.push_back(tuple());
      expect_block_end();
      return out;
    }
    out->kind = Stmt::Kind::set_block;
    if (is_op("|")) {
      out->filter = filters(nullptr);
    }
    out->body = body("endset");
    return out;
  }

  void signature(Signature* out) {
    expect_op("(");
    while (!is_op(")")) {
      if (!out->names.empty()) {
        expect_op(",");
      }
      const std::string name = expect_name();
      if (std::find(out->names.begin(), out->names.end(), name) != out->names.end()) {
        refuse("the parameter {} is there twice", quote(name));
      }
      if (name == "caller" || name == "varargs" || name == "kwargs") {
        refuse("the parameter '{}' is not supported; expected another name", name);
      }
      out->names.push_back(name);
      out->ids.push_back(id(name));
      if (skip_op("=")) {
        out->defaults.push_back(expression());
      } else if (!out->defaults.empty()) {
        refuse("a parameter without default follows one with a default");
      }
    }
    expect_op(")");
  }
  // Body of a macro or call block; break and continue do not reach out of it.
  void macro_body(Stmt* out, std::string_view end) {
    frames_.push_back({.macro = true});
    out->body = body(end);
    const Frame& frame = frames_.back();
    out->signature.uses_caller = frame.uses_caller;
    out->signature.uses_varargs = frame.uses_varargs;
    out->signature.uses_kwargs = frame.uses_kwargs;
    frames_.pop_back();
  }
  StmtPtr macro(int line) {
    StmtPtr out = statement(Stmt::Kind::macro, line);
    out->text = expect_name();
    out->name = id(out->text);
    signature(&out->signature);
    macro_body(out.get(), "endmacro");
    return out;
  }
  StmtPtr call_block(int line) {
    StmtPtr out = statement(Stmt::Kind::call_block, line);
    if (is_op("(")) {
      signature(&out->signature);
    }
    out->exprs.push_back(expression());
    if (out->exprs[0]->op != Op::call) refuse("a call block calls nothing; expected a call");
    macro_body(out.get(), "endcall");
    return out;
  }
  StmtPtr filter_block(int line) {
    StmtPtr out = statement(Stmt::Kind::filter_block, line);
    out->filter = filters(nullptr, true);
    out->body = body("endfilter");
    return out;
  }
  StmtPtr with(int line) {
    StmtPtr out = statement(Stmt::Kind::with, line);
    while (now().kind != Kind::block_end) {
      if (!out->targets.empty()) {
        expect_op(",");
      }
      out->targets.push_back(target(false, ""));
      expect_op("=");
      out->exprs.push_back(expression());
    }
    out->body = body("endwith");
    return out;
  }
  StmtPtr generation(int line) {
    StmtPtr out = statement(Stmt::Kind::generation, line);
    program_.has_generation = true;
    macro_body(out.get(), "endgeneration");
    return out;
  }
  StmtPtr jump(const Token& name) {
    if (frames_.empty() || !frames_.back().loop) {
      refuse("'{}' is outside of a loop", name.text);
    }
    expect_block_end();
    return statement(name.text == "break" ? Stmt::Kind::break_loop : Stmt::Kind::continue_loop,
                     name.line);
  }

  Target one_target(bool attributes, std::string_view end) {
    const Nested nested(this);
    if (skip_op("(")) {
      Target out = target(attributes, end);
      expect_op(")");
      return out;
    }
    const std::string name = expect_name();
    static constexpr std::string_view kConstants[] = {"true", "false", "none",
                                                      "True", "False", "None"};
    if (name == "loop" ||
        std::find(std::begin(kConstants), std::end(kConstants), name) != std::end(kConstants)) {
      refuse("can't assign to '{}'", name);
    }
    Target out;
    out.name = id(name);
    if (attributes && skip_op(".")) {
      mention(name);
      out.attribute = expect_name();
    }
    return out;
  }
  Target target(bool attributes, std::string_view end) {
    Target first = one_target(attributes, end);
    if (!is_op(",")) return first;
    Target out;
    out.several = true;
    out.parts.push_back(std::move(first));
    while (skip_op(",")) {
      if (is_op("=") || is_op(")") || (!end.empty() && is_name(end))) break;
      out.parts.push_back(one_target(attributes, end));
    }
    return out;
  }

  // --- expressions

  ExprPtr node(Op op, int line, std::vector<ExprPtr> args = {}) const {
    auto out = std::make_unique<Expr>();
    out->op = op;
    out->line = line;
    out->args = std::move(args);
    settle(out.get());
    return out;
  }
  // Computes the depth of a node with all of its parts.
  void settle(Expr* out) const {
    const auto see = [&](const ExprPtr& part) {
      if (part != nullptr) {
        out->depth = std::max(out->depth, part->depth + 1);
      }
    };
    std::for_each(out->args.begin(), out->args.end(), see);
    for (const auto& [name, part] : out->named) {
      see(part);
    }
    see(out->star);
    see(out->star_star);
    if (out->depth > kMaxExprDepth) refuse("an expression deeper than {} levels", kMaxExprDepth);
  }
  ExprPtr two(Op op, int line, ExprPtr left, ExprPtr right) const {
    std::vector<ExprPtr> args;
    args.push_back(std::move(left));
    args.push_back(std::move(right));
    return node(op, line, std::move(args));
  }
  ExprPtr one(Op op, int line, ExprPtr arg) const {
    std::vector<ExprPtr> args;
    args.push_back(std::move(arg));
    return node(op, line, std::move(args));
  }
  ExprPtr constant(int line, Value value) const {
    ExprPtr out = node(Op::constant, line);
    out->constant = std::move(value);
    return out;
  }
  void mention(const std::string& name) {
    for (Frame& frame : frames_) {
      frame.uses_loop |= name == "loop";
      frame.uses_caller |= name == "caller";
      frame.uses_varargs |= name == "varargs";
      frame.uses_kwargs |= name == "kwargs";
    }
  }

  bool ends_tuple(std::string_view end) const {
    return now().kind == Kind::variable_end || now().kind == Kind::block_end || is_op(")") ||
           (!end.empty() && is_name(end));
  }
  // An expression, or several with commas: a tuple. `end` is a name that may follow.
  ExprPtr tuple(bool conditions = true, std::string_view end = "", bool in_brackets = false) {
    const int line = now().line;
    std::vector<ExprPtr> args;
    bool several = false;
    for (;;) {
      if (!args.empty()) {
        expect_op(",");
      }
      if (ends_tuple(end)) break;
      args.push_back(conditions ? expression() : either());
      if (!is_op(",")) break;
      several = true;
    }
    if (!several) {
      if (!args.empty()) return std::move(args[0]);
      if (!in_brackets) refuse("got {}; expected an expression", shown(now()));
    }
    return node(Op::tuple, line, std::move(args));
  }

  ExprPtr expression() {
    const Nested nested(this);
    const int line = now().line;
    ExprPtr out = either();
    while (skip_name("if")) {
      std::vector<ExprPtr> args;
      args.push_back(std::move(out));
      args.push_back(either());
      args.push_back(skip_name("else") ? expression() : nullptr);
      out = node(Op::condition, line, std::move(args));
    }
    return out;
  }
  ExprPtr either() {
    ExprPtr out = both();
    for (int line = now().line; skip_name("or"); line = now().line) {
      out = two(Op::logical_or, line, std::move(out), both());
    }
    return out;
  }
  ExprPtr both() {
    ExprPtr out = negation();
    for (int line = now().line; skip_name("and"); line = now().line) {
      out = two(Op::logical_and, line, std::move(out), negation());
    }
    return out;
  }
  ExprPtr negation() {
    if (!is_name("not")) return comparison();
    const Nested nested(this);
    const int line = take().line;
    return one(Op::logical_not, line, negation());
  }
  ExprPtr comparison() {
    const int line = now().line;
    ExprPtr first = sum();
    std::vector<std::string> operators;
    std::vector<ExprPtr> args;
    for (;;) {
      static constexpr std::string_view kComparisons[] = {"==", "!=", ">", ">=", "<", "<="};
      if (now().kind == Kind::op && std::find(std::begin(kComparisons), std::end(kComparisons),
                                              now().text) != std::end(kComparisons)) {
        operators.push_back(take().text);
      } else if (skip_name("in")) {
        operators.emplace_back("in");
      } else if (is_name("not") && ahead().kind == Kind::name && ahead().text == "in") {
        take();
        take();
        operators.emplace_back("not in");
      } else {
        break;
      }
      args.push_back(sum());
    }
    if (operators.empty()) return first;
    args.insert(args.begin(), std::move(first));
    ExprPtr out = node(Op::compare, line, std::move(args));
    out->operators = std::move(operators);
    return out;
  }
  ExprPtr sum() {
    ExprPtr out = concatenation();
    while (is_op("+") || is_op("-")) {
      const Token op = take();
      out = two(op.text == "+" ? Op::add : Op::sub, op.line, std::move(out), concatenation());
    }
    return out;
  }
  ExprPtr concatenation() {
    const int line = now().line;
    ExprPtr first = product();
    if (!is_op("~")) return first;
    std::vector<ExprPtr> args;
    args.push_back(std::move(first));
    while (skip_op("~")) {
      args.push_back(product());
    }
    return node(Op::concat, line, std::move(args));
  }
  ExprPtr product() {
    ExprPtr out = power();
    for (;;) {
      const Op op = is_op("*")    ? Op::mul
                    : is_op("/")  ? Op::div
                    : is_op("//") ? Op::floor_div
                    : is_op("%")  ? Op::mod
                                  : Op::constant;
      if (op == Op::constant) return out;
      const int line = take().line;
      out = two(op, line, std::move(out), power());
    }
  }
  ExprPtr power() {
    ExprPtr out = unary(true);
    while (is_op("**")) {
      const int line = take().line;
      out = two(Op::pow, line, std::move(out), unary(true));
    }
    return out;
  }
  ExprPtr unary(bool with_filters) {
    const Nested nested(this);
    const int line = now().line;
    ExprPtr out;
    if (skip_op("-")) {
      out = one(Op::neg, line, unary(false));
    } else if (skip_op("+")) {
      out = one(Op::pos, line, unary(false));
    } else {
      out = primary();
    }
    out = postfix(std::move(out));
    return with_filters ? filters_and_tests(std::move(out)) : std::move(out);
  }

  ExprPtr primary() {
    const Token token = now();
    switch (token.kind) {
      case Kind::name:
        take();
        return name(token);
      case Kind::integer:
        take();
        return constant(token.line, Value::integer(token.integer));
      case Kind::real:
        take();
        return constant(token.line, Value::real(token.real));
      case Kind::text: {
        std::string text;
        while (now().kind == Kind::text) {
          text += take().text;
        }
        return constant(token.line, Value::text(std::move(text)));
      }
      default:
        break;
    }
    if (skip_op("(")) {
      ExprPtr out = tuple(true, "", true);
      expect_op(")");
      return out;
    }
    if (skip_op("[")) return node(Op::list, token.line, elements("]"));
    if (skip_op("{")) return dict(token.line);
    refuse("unexpected {}; expected an expression", shown(token));
  }
  ExprPtr name(const Token& token) {
    const std::string& text = token.text;
    if (text == "true" || text == "True" || text == "false" || text == "False") {
      return constant(token.line, Value::boolean(text == "true" || text == "True"));
    }
    if (text == "none" || text == "None") return constant(token.line, Value::none());
    mention(text);
    ExprPtr out = node(Op::name, token.line);
    out->name = id(text);
    return out;
  }
  std::vector<ExprPtr> elements(std::string_view close) {
    std::vector<ExprPtr> out;
    while (!is_op(close)) {
      if (!out.empty()) {
        expect_op(",");
        if (is_op(close)) break;
      }
      out.push_back(expression());
    }
    expect_op(close);
    return out;
  }
  ExprPtr dict(int line) {
    std::vector<ExprPtr> args;
    while (!is_op("}")) {
      if (!args.empty()) {
        expect_op(",");
        if (is_op("}")) break;
      }
      args.push_back(expression());
      expect_op(":");
      args.push_back(expression());
    }
    expect_op("}");
    return node(Op::dict, line, std::move(args));
  }

  ExprPtr postfix(ExprPtr out) {
    for (;;) {
      if (is_op(".") || is_op("[")) {
        out = subscript(std::move(out));
      } else if (is_op("(")) {
        out = call(std::move(out));
      } else {
        return out;
      }
    }
  }
  ExprPtr filters_and_tests(ExprPtr out) {
    for (;;) {
      if (is_op("|")) {
        out = filters(std::move(out));
      } else if (is_name("is")) {
        out = test(std::move(out));
      } else if (is_op("(")) {
        out = call(std::move(out));
      } else {
        return out;
      }
    }
  }
  ExprPtr subscript(ExprPtr subject) {
    const Token open = take();
    if (open.text == ".") {
      const Token token = take();
      if (token.kind == Kind::integer) {
        return two(Op::item, open.line, std::move(subject),
                   constant(open.line, Value::integer(token.integer)));
      }
      if (token.kind != Kind::name) refuse("got {}; expected a name or number", shown(token));
      ExprPtr out = one(Op::attribute, open.line, std::move(subject));
      out->text = token.text;
      return out;
    }
    std::vector<ExprPtr> args;
    args.push_back(std::move(subject));
    if (!is_op(":")) {
      args.push_back(expression());
      if (is_op(",")) refuse("an index with a comma is not supported; expected ']' or ':'");
      if (skip_op("]")) return node(Op::item, open.line, std::move(args));
    } else {
      args.push_back(nullptr);
    }
    while (skip_op(":")) {
      if (args.size() == 4) refuse("a slice has at most three parts");
      args.push_back(is_op(":") || is_op("]") ? nullptr : expression());
    }
    expect_op("]");
    args.resize(4);
    return node(Op::slice, open.line, std::move(args));
  }

  // The arguments in brackets that follow, into a call, filter or test.
  void arguments(Expr* out) {
    expect_op("(");
    for (bool first = true; !is_op(")"); first = false) {
      if (!first) {
        expect_op(",");
        if (is_op(")")) break;
      }
      if (skip_op("*")) {
        if (out->star != nullptr || out->star_star != nullptr) refuse("invalid order of arguments");
        out->star = expression();
      } else if (skip_op("**")) {
        if (out->star_star != nullptr) refuse("invalid order of arguments");
        out->star_star = expression();
      } else if (now().kind == Kind::name && ahead().kind == Kind::op && ahead().text == "=") {
        if (out->star_star != nullptr) refuse("invalid order of arguments");
        const std::string name = take().text;
        for (const auto& [other, value] : out->named) {
          if (other == name) refuse("the argument {} is there twice", quote(name));
        }
        take();
        out->named.emplace_back(name, expression());
      } else {
        if (out->star != nullptr || out->star_star != nullptr || !out->named.empty()) {
          refuse("invalid order of arguments");
        }
        out->args.push_back(expression());
      }
    }
    expect_op(")");
    settle(out);
  }
  ExprPtr call(ExprPtr callee) {
    ExprPtr out = one(Op::call, now().line, std::move(callee));
    arguments(out.get());
    return out;
  }
  std::string dotted_name() {
    std::string out = expect_name();
    while (skip_op(".")) {
      out += "." + expect_name();
    }
    return out;
  }
  // Filters behind one another; `subject` is null where a block's text is filtered.
  ExprPtr filters(ExprPtr subject, bool begun = false) {
    while (begun || skip_op("|")) {
      begun = false;
      ExprPtr out = one(Op::filter, now().line, std::move(subject));
      out->text = dotted_name();
      if (!is_filter(out->text)) {
        --at_;
        refuse("the filter '{}' is not supported{}", out->text, similar(out->text, filter_names()));
      }
      if (is_op("(")) {
        arguments(out.get());
      }
      subject = std::move(out);
    }
    return subject;
  }
  static std::string similar(const std::string& name, const std::vector<std::string>& names) {
    const std::string close = nearest(name, names);
    return close.empty() ? "" : fmt::format("; did you mean '{}'?", close);
  }
  ExprPtr test(ExprPtr subject) {
    const int line = take().line;
    const bool negated = skip_name("not");
    ExprPtr out = one(Op::test, line, std::move(subject));
    out->text = dotted_name();
    if (!is_test(out->text)) {
      --at_;
      refuse("the test '{}' is not supported{}", out->text, similar(out->text, test_names()));
    }
    const Kind kind = now().kind;
    const bool operand = kind == Kind::name || kind == Kind::text || kind == Kind::integer ||
                         kind == Kind::real || is_op("[") || is_op("{");
    if (is_op("(")) {
      arguments(out.get());
    } else if (operand && !is_name("else") && !is_name("or") && !is_name("and")) {
      if (is_name("is")) refuse("tests cannot be chained with 'is'");
      const Nested nested(this);
      out->args.push_back(postfix(primary()));
      settle(out.get());
    }
    return negated ? one(Op::logical_not, line, std::move(out)) : std::move(out);
  }

  std::string where_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  Program program_;
  std::unordered_map<std::string, int> ids_;
  std::vector<Frame> frames_;
};

}  // namespace

Program parse(std::string_view source, const std::string& where) {
  if (source.size() > kMaxSource) {
    fail(where, "the template is {} bytes long; expected at most {}", source.size(), kMaxSource);
  }
  return Parser(source, where).run();
}

}  // namespace hocket::data::jinja
