// The operator table as a whole.

#include "lowering/table.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace tpu::lowering {
namespace {

TEST(Table, EveryRowHasALoweringAndItsOwnName) {
  std::set<std::string_view> names;
  for (const Row& row : table()) {
    EXPECT_NE(row.lower, nullptr) << row.name;
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_EQ(row.name.find("::"), std::string_view::npos) << row.name;
    EXPECT_EQ(row.static_args & row.runtime_args, 0u) << row.name << ": an argument is static and run-time";
    EXPECT_EQ(find(row.name), &row);
  }
}

TEST(Table, UnknownNamesAreNotFound) {
  EXPECT_EQ(find("no_such_operator"), nullptr);
  EXPECT_EQ(find(""), nullptr);
}

}  // namespace
}  // namespace tpu::lowering
