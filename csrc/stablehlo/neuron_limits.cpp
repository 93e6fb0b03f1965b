#include "stablehlo/neuron_limits.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <set>
#include <sstream>
#include <string_view>

namespace tpu::stablehlo {
namespace {

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

/// One operation: `%3 = stablehlo.add %1, %2 : tensor<4xf32>`, or one with regions, whose blocks are kept.
struct Operation {
  std::vector<std::string> results;   // "%3"
  std::string name;                   // "add"
  std::vector<std::string> operands;  // "%1", "%2"
  std::string line;                   // the first line of it
  std::string tail;                   // of one with regions: attributes and types, after the last block
  struct Block {
    std::vector<std::string> arguments;
    std::vector<Operation> operations;  // the last one is the terminator
  };
  std::vector<Block> blocks;

  const std::string& types() const { return tail.empty() ? line : tail; }
};

std::vector<std::string> references(std::string_view text) {
  std::vector<std::string> found;
  for (size_t at = text.find('%'); at != std::string_view::npos; at = text.find('%', at + 1)) {
    size_t end = at + 1;
    while (end < text.size() && std::isdigit(static_cast<unsigned char>(text[end])) != 0) ++end;
    found.emplace_back(text.substr(at, end - at));
  }
  return found;
}

Operation parse_line(std::string_view text) {
  Operation op;
  op.line = text;
  const size_t equals = text.starts_with('%') ? text.find(" = ") : std::string_view::npos;
  if (equals != std::string_view::npos) {
    op.results = references(text.substr(0, equals));
    text.remove_prefix(equals + 3);
  }
  for (const std::string_view dialect : {"stablehlo.", "chlo."}) {
    const size_t at = text.find(dialect);
    if (at > 1) continue;  // but for a quote before it
    size_t end = at + dialect.size();
    const size_t start = end;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) != 0 || text[end] == '_')) ++end;
    op.name = text.substr(start, end - start);
  }
  if (op.name.empty()) op.name = text.substr(0, text.find(' '));  // "return"
  op.operands = references(text);
  return op;
}

class Reader {
 public:
  explicit Reader(const std::string& program) : lines_(program) {}

  /// Operations up to the line that closes the block, which is left in `closing`.
  std::vector<Operation> block(std::string& closing) {
    std::vector<Operation> operations;
    std::string line;
    while (std::getline(lines_, line)) {
      const size_t start = line.find_first_not_of(' ');
      if (start == std::string::npos) continue;
      line.erase(0, start);
      if (line.starts_with('}')) {
        closing = line;
        return operations;
      }
      if (line.starts_with("//") || line.starts_with("module") || line.starts_with("func.func")) continue;
      operations.push_back(parse_line(line));
      if (line.ends_with("({")) regions(operations.back());
    }
    return operations;
  }

 private:
  void regions(Operation& op) {
    for (;;) {
      std::string closing;
      Operation::Block made;
      made.operations = block_with_arguments(made.arguments, closing);
      op.blocks.push_back(std::move(made));
      if (closing.starts_with("}, {")) continue;
      op.tail = closing.empty() ? " " : closing;
      return;
    }
  }

  std::vector<Operation> block_with_arguments(std::vector<std::string>& arguments, std::string& closing) {
    const std::istringstream::pos_type start = lines_.tellg();
    std::string line;
    if (std::getline(lines_, line) && contains(line, "^bb")) {
      arguments = references(line);
    } else {
      lines_.seekg(start);
    }
    return block(closing);
  }

  std::istringstream lines_;
};

bool is_integer_type(std::string_view types) {
  // The element type of the first array: after the last 'x' of its sizes.
  const size_t open = types.find("tensor<"), close = types.find('>', open);
  if (open == std::string_view::npos) return false;
  std::string_view element = types.substr(open + 7, close - open - 7);
  while (!element.empty() && std::isdigit(static_cast<unsigned char>(element[0])) != 0) {
    element.remove_prefix(element.find('x') + 1);
  }
  return element.starts_with('i') || element.starts_with("ui");
}

std::string_view after_colon(std::string_view line) {
  const size_t at = line.rfind(" : ");
  return at == std::string_view::npos ? std::string_view() : line.substr(at + 3);
}

/// Whether the literal of a constant line has a number beyond 32 bits.
bool is_wide_constant(std::string_view line) {
  if (!contains(after_colon(line), "i64>")) return false;
  const size_t open = line.find("dense<"), close = line.rfind("> : ");
  if (open == std::string_view::npos || close == std::string_view::npos) return false;
  std::string_view literal = line.substr(open + 6, close - open - 6);
  for (size_t at = 0; at < literal.size();) {
    if (std::isdigit(static_cast<unsigned char>(literal[at])) == 0) {
      ++at;
      continue;
    }
    const bool negative = at > 0 && literal[at - 1] == '-';
    uint64_t number = 0;
    const auto end = std::from_chars(literal.data() + at, literal.data() + literal.size(), number).ptr;
    if (number > (negative ? uint64_t{1} << 31 : (uint64_t{1} << 32) - 1)) return true;
    at = static_cast<size_t>(end - literal.data());
  }
  return false;
}

class Search {
 public:
  void visit(const std::vector<Operation>& operations) {
    for (const Operation& op : operations) {
      for (const std::string& result : op.results) by_result_[result] = &op;
      check(op);
      for (const Operation::Block& block : op.blocks) visit(block.operations);
    }
  }
  void add(std::string reason) { reasons_.insert(std::move(reason)); }
  std::vector<std::string> reasons() const { return {reasons_.begin(), reasons_.end()}; }

 private:
  void check(const Operation& op) {
    const std::string_view types = after_colon(op.types());
    const bool integer = is_integer_type(types);
    if (op.name == "if" || op.name == "case") add("conditional");
    if (op.name == "while" && !is_counted(op)) add("data-dependent loop");
    if (op.name == "rng" || op.name == "rng_bit_generator") add("random bits");
    if ((op.name == "dot_general" || op.name == "dot" || op.name == "convolution") && integer) add("integer product");
    if (op.name == "power" && integer) add("integer power");
    if (op.name == "scatter" && integer) add("integer scatter");
    if (op.name == "top_k" && integer) add("integer top-k");
    if ((op.name == "reduce" || op.name == "reduce_window") && op.results.size() > 1) add("variadic reduction");
    if (op.name == "reduce_window" && is_dilated(op.tail)) add("dilated window");
    if (op.name == "sort" && !is_plain_comparison(op)) add("sort comparator");
    if (op.name == "constant" && is_wide_constant(op.line)) add("64-bit constant");
    if (op.name == "shift_right_arithmetic") {
      for (const char* width : {"8", "16", "64"}) {
        if (contains(types, std::string("i") + width + ">")) add(std::string(width) + "-bit shift");
      }
    }
  }

  static bool is_dilated(std::string_view attributes) {
    for (const std::string_view name : {"base_dilations = array<i64: ", "window_dilations = array<i64: "}) {
      const size_t at = attributes.find(name);
      if (at == std::string_view::npos) continue;
      const size_t start = at + name.size();
      const std::string_view values = attributes.substr(start, attributes.find('>', start) - start);
      if (values.find_first_not_of("1, ") != std::string_view::npos || contains(values, "11")) return true;
    }
    return false;
  }

  static bool is_plain_comparison(const Operation& op) {
    const std::vector<Operation>& body = op.blocks[0].operations;
    if (body.size() != 2 || body[0].name != "compare") return false;
    return std::any_of(std::begin(kOrders), std::end(kOrders),
                       [&](const char* order) { return contains(body[0].line, order); });
  }

  bool is_constant(const std::string& value) const {
    const auto found = by_result_.find(value);
    return found != by_result_.end() && found->second->name == "constant";
  }

  /// A condition that is one comparison of loop variables that start as constants, or of constants.
  bool is_counted(const Operation& loop) const {
    if (loop.blocks.size() != 2) return false;
    const Operation::Block& condition = loop.blocks[0];
    std::set<std::string> constants;
    for (const Operation& op : condition.operations) {
      if (op.name == "constant") {
        constants.insert(op.results.begin(), op.results.end());
      } else if (op.name == "compare") {
        for (size_t i = 0; i < 2; ++i) {
          const auto at = std::find(condition.arguments.begin(), condition.arguments.end(), op.operands[i]);
          const bool variable = at != condition.arguments.end();
          const size_t number = static_cast<size_t>(at - condition.arguments.begin());
          if (variable ? !is_constant(loop.operands[number]) : constants.count(op.operands[i]) == 0) return false;
        }
      } else if (op.name != "return") {
        return false;
      }
    }
    return true;
  }

  static constexpr const char* kOrders[] = {"compare LE", "compare GE", "compare LT", "compare GT"};
  std::set<std::string> reasons_;
  std::map<std::string, const Operation*> by_result_;
};

}  // namespace

std::vector<std::string> neuron_refusals(const std::string& program) {
  Search search;
  if (contains(program, "f64>")) search.add("float64");
  if (contains(program, "complex<")) search.add("complex");
  std::string closing;
  const std::vector<Operation> operations = Reader(program).block(closing);
  search.visit(operations);
  return search.reasons();
}

}  // namespace tpu::stablehlo
