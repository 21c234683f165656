// SPDX-License-Identifier: Apache-2.0
#include "data/chat/expression_parser.h"

#include "base/text.h"
#include "data/chat/filters.h"

namespace hocket::data::jinja {
namespace {

using Kind = Token::Kind;
using Op = Expr::Op;

constexpr int kMaxNesting = 150;    // of brackets, blocks and operators without an end in sight
constexpr int kMaxExprDepth = 400;  // of a tree of expressions, a + b + c being 2

std::string similar(const std::string& name, const std::vector<std::string>& names) {
  const std::string close = nearest(name, names);
  return close.empty() ? "" : fmt::format("; did you mean '{}'?", close);
}

}  // namespace

ExpressionParser::ExpressionParser(std::string_view source, const std::string& where)
    : where_(where), tokens_(tokenize(source, where)) {
  program_.where = where;
}

ExpressionParser::Nested::Nested(ExpressionParser* parser) : parser_(parser) {
  if (++parser_->nesting_ > kMaxNesting) {
    parser_->refuse("nested deeper than {} levels", kMaxNesting);
  }
}

std::string ExpressionParser::shown(const Token& token) {
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

bool ExpressionParser::is_op(std::string_view text) const {
  return now().kind == Kind::op && now().text == text;
}

bool ExpressionParser::is_name(std::string_view text) const {
  return now().kind == Kind::name && now().text == text;
}

Token ExpressionParser::take() {
  Token token = now();
  if (at_ + 1 < tokens_.size()) {
    ++at_;
  }
  return token;
}

bool ExpressionParser::skip_op(std::string_view text) {
  const bool found = is_op(text);
  if (found) {
    take();
  }
  return found;
}

bool ExpressionParser::skip_name(std::string_view text) {
  const bool found = is_name(text);
  if (found) {
    take();
  }
  return found;
}

void ExpressionParser::expect_op(std::string_view text) {
  if (!skip_op(text)) refuse("got {}; expected '{}'", shown(now()), text);
}

void ExpressionParser::expect_block_end() {
  if (now().kind != Kind::block_end) refuse("got {}; expected '%}}'", shown(now()));
  take();
}

std::string ExpressionParser::expect_name() {
  if (now().kind != Kind::name) refuse("got {}; expected a name", shown(now()));
  return take().text;
}

int ExpressionParser::id(const std::string& name) {
  const auto [found, fresh] = ids_.emplace(name, static_cast<int>(program_.names.size()));
  if (fresh) {
    program_.names.push_back(name);
  }
  return found->second;
}

ExprPtr ExpressionParser::node(Op op, int line, std::vector<ExprPtr> args) const {
  auto out = std::make_unique<Expr>();
  out->op = op;
  out->line = line;
  out->args = std::move(args);
  settle(out.get());
  return out;
}

// Computes the depth of a node with all of its parts.
void ExpressionParser::settle(Expr* out) const {
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

ExprPtr ExpressionParser::two(Op op, int line, ExprPtr left, ExprPtr right) const {
  std::vector<ExprPtr> args;
  args.push_back(std::move(left));
  args.push_back(std::move(right));
  return node(op, line, std::move(args));
}

ExprPtr ExpressionParser::one(Op op, int line, ExprPtr arg) const {
  std::vector<ExprPtr> args;
  args.push_back(std::move(arg));
  return node(op, line, std::move(args));
}

ExprPtr ExpressionParser::constant(int line, Value value) const {
  ExprPtr out = node(Op::constant, line);
  out->constant = std::move(value);
  return out;
}

void ExpressionParser::mention(const std::string& name) {
  for (Frame& frame : frames_) {
    frame.uses_loop |= name == "loop";
    frame.uses_caller |= name == "caller";
    frame.uses_varargs |= name == "varargs";
    frame.uses_kwargs |= name == "kwargs";
  }
}

bool ExpressionParser::ends_tuple(std::string_view end) const {
  return now().kind == Kind::variable_end || now().kind == Kind::block_end ||
         is_op(kClosingBracket) || (!end.empty() && is_name(end));
}

// An expression, or several with commas: a tuple. `end` is a name that may follow.
ExprPtr ExpressionParser::tuple(bool conditions, std::string_view end, bool in_brackets) {
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

ExprPtr ExpressionParser::expression() {
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

ExprPtr ExpressionParser::either() {
  ExprPtr out = both();
  for (int line = now().line; skip_name("or"); line = now().line) {
    out = two(Op::logical_or, line, std::move(out), both());
  }
  return out;
}

ExprPtr ExpressionParser::both() {
  ExprPtr out = negation();
  for (int line = now().line; skip_name("and"); line = now().line) {
    out = two(Op::logical_and, line, std::move(out), negation());
  }
  return out;
}

ExprPtr ExpressionParser::negation() {
  if (!is_name("not")) return comparison();
  const Nested nested(this);
  const int line = take().line;
  return one(Op::logical_not, line, negation());
}

ExprPtr ExpressionParser::comparison() {
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

ExprPtr ExpressionParser::sum() {
  ExprPtr out = concatenation();
  while (is_op("+") || is_op("-")) {
    const Token op = take();
    out = two(op.text == "+" ? Op::add : Op::sub, op.line, std::move(out), concatenation());
  }
  return out;
}

ExprPtr ExpressionParser::concatenation() {
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

ExprPtr ExpressionParser::product() {
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

ExprPtr ExpressionParser::power() {
  ExprPtr out = unary(true);
  while (is_op("**")) {
    const int line = take().line;
    out = two(Op::pow, line, std::move(out), unary(true));
  }
  return out;
}

ExprPtr ExpressionParser::unary(bool with_filters) {
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

ExprPtr ExpressionParser::primary() {
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

ExprPtr ExpressionParser::name(const Token& token) {
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

std::vector<ExprPtr> ExpressionParser::elements(std::string_view close) {
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

ExprPtr ExpressionParser::dict(int line) {
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

ExprPtr ExpressionParser::postfix(ExprPtr out) {
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

ExprPtr ExpressionParser::filters_and_tests(ExprPtr out) {
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

ExprPtr ExpressionParser::subscript(ExprPtr subject) {
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
void ExpressionParser::arguments(Expr* out) {
  expect_op("(");
  for (bool first = true; !is_op(kClosingBracket); first = false) {
    if (!first) {
      expect_op(",");
      if (is_op(kClosingBracket)) break;
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

ExprPtr ExpressionParser::call(ExprPtr callee) {
  ExprPtr out = one(Op::call, now().line, std::move(callee));
  arguments(out.get());
  return out;
}

std::string ExpressionParser::dotted_name() {
  std::string out = expect_name();
  while (skip_op(".")) {
    out += "." + expect_name();
  }
  return out;
}

// Filters behind one another; `subject` is null where a block's text is filtered.
ExprPtr ExpressionParser::filters(ExprPtr subject, bool begun) {
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

ExprPtr ExpressionParser::test(ExprPtr subject) {
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

}  // namespace hocket::data::jinja
