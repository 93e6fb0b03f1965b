#include "graph/policy.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace tpu::graph {
namespace {

class FlushPolicyTest : public testing::Test {
 protected:
  FlushPolicyTest() { set_mode(Mode::kFused); }
  ~FlushPolicyTest() override { set_mode(before_); }

  /// Appends the node and launches if the policy says so; true when it does.
  bool append(uint64_t plan_id) {
    Plan& plan = plans_[plan_id];
    plan.id = plan_id;
    recording_.nodes.push_back({&plan, {}, 0, 0, 0});
    program_.push_back(plan_id);
    if (policy_.after_append(recording_) == nullptr) return false;
    programs_.push_back(std::move(program_));
    program_.clear();
    launch();
    return true;
  }
  void launch() {
    recording_.clear();
    policy_.reset();
  }
  size_t distinct_after(size_t first) const {
    return std::set<std::vector<uint64_t>>(programs_.begin() + static_cast<ptrdiff_t>(first), programs_.end()).size();
  }

  std::vector<std::vector<uint64_t>> programs_;

 private:
  const Mode before_ = mode();
  std::map<uint64_t, Plan> plans_;
  std::vector<uint64_t> program_;
  Recording recording_;
  FlushPolicy policy_;
};

TEST_F(FlushPolicyTest, StrictLaunchesEveryNode) {
  set_mode(Mode::kStrict);
  for (uint64_t i = 1; i < 5; ++i) EXPECT_TRUE(append(i));
}

TEST_F(FlushPolicyTest, AScopeWithoutADeviceGathersNothing) {
  set_mode(Mode::kStrict);
  const OperatorScope no_device(-1);
  EXPECT_TRUE(append(1));  // without a device nothing would launch it later
}

// The body of a recurrent cell has the same operator twice in a row: a distance to the last one is no period.
TEST_F(FlushPolicyTest, LoopsAreCutAtTheirPeriodAndGiveOneProgram) {
  const std::vector<uint64_t> body = {1, 2, 3, 3, 4, 5, 5, 6, 5, 7, 7, 8};
  for (int i = 0; i < 200; ++i) {
    for (uint64_t plan : body) append(plan);
  }
  ASSERT_GT(programs_.size(), 5u);
  EXPECT_EQ(distinct_after(1), 1u);
  EXPECT_EQ(programs_.back().size() % body.size(), 0u);
  EXPECT_GE(programs_.back().size(), FlushPolicy::kMinRepeated);
}

TEST_F(FlushPolicyTest, ALoopOfOneOperator) {
  for (int i = 0; i < 2000; ++i) append(9);
  ASSERT_GT(programs_.size(), 5u);
  EXPECT_EQ(distinct_after(1), 1u);
}

TEST_F(FlushPolicyTest, AReadStartsAnew) {
  for (int step = 0; step < 4; ++step) {
    programs_.clear();
    for (int i = 0; i < 200; ++i) append(9);
    EXPECT_EQ(programs_.size(), 1u);  // the repetition before the read does not count
    launch();
  }
}

// A step longer than a program may be: the pieces must be the same in every step, or each step would compile.
TEST_F(FlushPolicyTest, LongStepsAreCutAtTheSamePlaces) {
  std::mt19937_64 random(1);
  for (const size_t length : {2000u, 5000u, 9973u}) {
    std::vector<uint64_t> step(length);
    for (uint64_t& plan : step) plan = 1 + random() % 300;
    programs_.clear();
    // Where a piece ends depends on where it began alone, and there are few places: soon all pieces are known.
    for (int i = 0; i < 12; ++i) {
      for (uint64_t plan : step) append(plan);
    }
    const size_t warm = programs_.size();
    EXPECT_LE(distinct_after(0), 2 + length / 256);
    const std::set<std::vector<uint64_t>> known(programs_.begin(), programs_.end());
    for (int i = 0; i < 30; ++i) {
      for (uint64_t plan : step) append(plan);
    }
    for (size_t i = warm; i < programs_.size(); ++i) {
      EXPECT_TRUE(known.contains(programs_[i])) << "step of " << length << ", program " << i;
      EXPECT_LE(programs_[i].size(), FlushPolicy::kMaxNodes);
    }
  }
}

}  // namespace
}  // namespace tpu::graph
