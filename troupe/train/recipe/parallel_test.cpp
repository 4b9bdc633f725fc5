#include "troupe/train/recipe/parallel.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "troupe/core/config/config.h"

namespace troupe {
namespace {

std::vector<std::string> idle_keys(const std::string& text, const LayoutNeeds& needs) {
  ParallelConfig given;
  read_config(parse_yaml(text, "x.yaml"), given);
  std::vector<std::string> out;
  for (const std::string& line : without_effect(given, resolved(given, needs), needs.experts)) {
    out.push_back(line.substr(0, line.find(' ')));
  }
  return out;
}

TEST(Parallel, KeysThatALayoutLeavesIdleAreTold) {
  using Keys = std::vector<std::string>;
  const LayoutNeeds needs{.world = 4, .experts = 8};
  EXPECT_EQ(idle_keys("{expert: 2, shard: zero1, dispatch: exact, dispatcher: all_gather}", needs),
            Keys());
  EXPECT_EQ(
      idle_keys("{expert: 1, shard: none, dispatch: exact, dispatcher: all_gather, "
                "wire: int8, rebalance: {every: 5}}",
                needs),
      (Keys{"parallel.dispatch", "parallel.dispatcher", "parallel.wire", "parallel.rebalance"}));
  EXPECT_EQ(idle_keys("{expert: 4, shard: zero1, prefetch: 2, reshard: false, node_ranks: 2, "
                      "dispatcher: all_to_all}",
                      {.world = 4, .experts = 8, .per_host = 4}),
            (Keys{"parallel.prefetch", "parallel.reshard", "parallel.node_ranks"}));
  EXPECT_EQ(idle_keys("{expert: 4, shard: full, prefetch: 2, reshard: false, node_ranks: 2, "
                      "dispatcher: two_level}",
                      needs),
            Keys());
  const LayoutNeeds six{.world = 4, .experts = 6};
  EXPECT_EQ(idle_keys("{expert: 4, shard: none, placement: uneven}", six), Keys());
  for (const std::string expert : {"1", "2"}) {
    EXPECT_EQ(idle_keys("{expert: " + expert + ", shard: none, placement: uneven}", six),
              (Keys{"parallel.placement"}));
  }
}

TEST(Parallel, ALinearLayerNeedsWholeRowsAndAllHeadsOnARank) {
  const auto faults = [](const std::string& text) {
    ParallelConfig c;
    read_config(parse_yaml(text, "x.yaml"), c);
    std::string out;
    for (const std::string& line :
         layout_faults(c, {.world = 4, .experts = 8, .sequence = 64, .delta = true})) {
      out += line + '\n';
    }
    return out;
  };
  EXPECT_EQ(faults("{expert: 4, shard: zero1}"), "");
  EXPECT_NE(faults("{tensor: 2}").find("parallel.tensor: E2005 the heads of model.delta"),
            std::string::npos);
  EXPECT_NE(faults("{context: 2}").find("parallel.context: E2005 model.delta carries a state"),
            std::string::npos);
}

TEST(Parallel, OV9_OverlapSaysWhereItCannotBe) {
  const auto faults = [](const std::string& text) {
    ParallelConfig c;
    read_config(parse_yaml(text, "x.yaml"), c);
    LayoutNeeds needs{.world = 8, .experts = 8, .layers = 8};
    needs.loads.assign(10, {1, 1, 1});
    std::string out;
    for (const std::string& fault : layout_faults(c, needs)) {
      out += fault + '\n';
    }
    return out;
  };
  EXPECT_EQ(faults("{overlap: experts, expert: 4, shard: zero1}"), "");
  EXPECT_EQ(faults("{overlap: experts, expert: 4, shard: none, pipeline: 2}"), "");
  EXPECT_EQ(faults("{overlap: experts, expert: 1, shard: full}"), "");
  EXPECT_EQ(faults("{overlap: experts, expert: 4, shard: full}"), "");
  for (const std::string order : {"gpipe", "zb1p"}) {
    EXPECT_EQ(
        faults("{overlap: experts, expert: 4, shard: none, pipeline: 2, schedule: " + order + "}"),
        "parallel.overlap: E2005 experts runs a backward beside the forward that follows it, "
        "and the order " +
            order + " is not run so; use schedule 1f1b or interleaved\n");
  }
  EXPECT_EQ(idle_keys("{overlap: experts, expert: 1, shard: none}", {.world = 4, .experts = 8}),
            (std::vector<std::string>{"parallel.overlap"}));
}

TEST(Parallel, OV10_WhatIsOfNcclIsToldOverGloo) {
  ParallelConfig given;
  EXPECT_TRUE(without_nccl(given).empty());
  read_config(parse_yaml("{comm_priority: normal, comm_blocks: 8}", "x.yaml"), given);
  const std::vector<std::string> messages = without_nccl(given);
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_EQ(messages[0],
            "parallel.comm_priority does nothing: Gloo moves the data, and it is of NCCL");
  using Keys = std::vector<std::string>;
  const LayoutNeeds needs{.world = 4, .experts = 8};
  EXPECT_EQ(idle_keys("{expert: 1, shard: none, comm_blocks: 8}", needs),
            (Keys{"parallel.comm_blocks"}));
  EXPECT_EQ(idle_keys("{expert: 4, shard: none, comm_blocks: 8}", needs), Keys());
}

TEST(Parallel, H1_UnevenPlacementTakesAnyRanksUpToTheNumberOfExperts) {
  const auto faults = [](int64_t experts, int64_t ranks, ExpertSplit placement) {
    ParallelConfig c;
    c.expert = ranks;
    c.placement = placement;
    return layout_faults(c, {.world = ranks, .experts = experts});
  };
  for (int64_t ranks = 1; ranks <= 12; ++ranks) {
    for (int64_t experts = 1; experts <= 30; ++experts) {
      const bool divide = experts % ranks == 0 || ranks % experts == 0;
      EXPECT_EQ(faults(experts, ranks, ExpertSplit::kEven).empty(), divide);
      EXPECT_EQ(faults(experts, ranks, ExpertSplit::kUneven).empty(), divide || experts > ranks);
    }
  }
}

TEST(Parallel, TheRankWithTheMostExpertsIsWhatAllWaitFor) {
  ParallelConfig c;
  c.expert = 4;
  c.placement = ExpertSplit::kUneven;
  EXPECT_DOUBLE_EQ(most_held(c, 6), 2 * 4 / 6.0);
  EXPECT_DOUBLE_EQ(most_held(c, 8), 1);
  EXPECT_DOUBLE_EQ(most_held(c, 2), 1);  // cut by their width
  EXPECT_DOUBLE_EQ(most_held(c, 0), 1);
  c.placement = ExpertSplit::kEven;
  EXPECT_DOUBLE_EQ(most_held(c, 8), 1);
}

// Six blocks, an MTP module and the head, which cost 1 each; the embedding costs nothing.
LayoutNeeds staged(int64_t world) {
  LayoutNeeds out{.world = world, .layers = 6, .mtp = 1};
  for (const double seconds : {0., 1., 1., 1., 1., 1., 1., 1., 1.})
    out.loads.push_back({seconds, 1, 1});
  return out;
}

ParallelConfig read(const std::string& text) {
  ParallelConfig out;
  read_config(parse_yaml(text, "x.yaml"), out);
  return out;
}

TEST(Parallel, StagesAreChosenByCostOrReadAndPrintedShortest) {
  const auto settled = [](const std::string& text) { return resolved(read(text), staged(4)); };
  ParallelConfig c = settled("{pipeline: 2, shard: none}");
  EXPECT_EQ(c.stages, "Et*4|ttmL");
  EXPECT_EQ(c.virtual_stages, 1);
  EXPECT_EQ(c.schedule, PipelineOrder::k1f1b);
  c = settled("{pipeline: 2, virtual: 2, shard: none}");
  EXPECT_EQ(c.stages, "Ett|tt|tt|mL");
  EXPECT_EQ(c.schedule, PipelineOrder::kInterleaved);
  c = settled("{pipeline: 2, schedule: zbv, shard: none}");
  EXPECT_EQ(c.virtual_stages, 2);
  EXPECT_EQ(std::count(c.stages.begin(), c.stages.end(), '|'), 3);
  EXPECT_EQ(pipeline_shape(c, 6, 1).path, StagePath::kVee);
  c = settled("{pipeline: 2, schedule: dualpipev, shard: none}");
  EXPECT_EQ(c.virtual_stages, 2);
  EXPECT_EQ(pipeline_shape(c, 6, 1).path, StagePath::kVee);
  c = settled("{pipeline: 2, stages: 'E t, t | tt || t t m L', schedule: gpipe, shard: none}");
  EXPECT_EQ(c.stages, "Ett|tt||ttmL");
  EXPECT_EQ(c.virtual_stages, 2);
  EXPECT_EQ(c.schedule, PipelineOrder::kGpipe);
  c = settled("{stages: 'Et*6mL', shard: none}");
  EXPECT_EQ(c.stages, "");
  EXPECT_EQ(idle_keys("{stages: 'Et*6mL', virtual: 2, schedule: gpipe, shard: none}", staged(4)),
            (std::vector<std::string>{"parallel.virtual", "parallel.stages", "parallel.schedule"}));
}

TEST(Parallel, PipelinesThatCannotBeAreToldWithWhatCan) {
  const auto faults = [](const std::string& text) {
    std::string out;
    for (const std::string& fault : layout_faults(read(text), staged(4))) out += fault + '\n';
    return out;
  };
  const auto says = [&](const std::string& text, const std::string& what) {
    const std::string found = faults(text);
    EXPECT_NE(found.find(what), std::string::npos) << text << ": " << found;
  };
  EXPECT_EQ(faults("{pipeline: 2, expert: 1}"), "");
  says("{pipeline: 16}",
       "parallel.pipeline: E2005 16 stages for 6 layers, embedding, MTP modules and head: at most "
       "9");
  says(
      "{pipeline: 4, virtual: 3}",
      "parallel.virtual: E2005 12 stages for 6 layers, embedding, MTP modules and head: at most 9");
  says("{pipeline: 3, expert: 1}", "parallel.pipeline: E2005 3 stages do not divide 4 ranks");
  says("{pipeline: 2, stages: 'Et*5|mL'}", "parallel.stages: E2005 5 of the 6 layers");
  says("{pipeline: 2, stages: 'Et*3|x*3mL'}", "parallel.stages: E2005 position 6");
  says("{pipeline: 2, virtual: 2, stages: 'Et*3|t*3mL'}",
       "parallel.virtual: E2005 2, and parallel.stages has 1 a rank");
  says("{pipeline: 2, virtual: 2, schedule: 1f1b}",
       "parallel.schedule: E2005 1f1b has one stage a rank");
  says("{pipeline: 2, virtual: 2, schedule: zb1p}",
       "parallel.schedule: E2005 zb1p has one stage a rank; there are 2: use zbv, "
       "dualpipev, interleaved or");
  says("{pipeline: 2, virtual: 3, schedule: zbv}",
       "parallel.schedule: E2005 zbv has 2 stages a rank; parallel.virtual is 3");
  says("{pipeline: 2, virtual: 3, schedule: dualpipev}",
       "parallel.schedule: E2005 dualpipev has 2 stages a rank; parallel.virtual is 3");
  says("{pipeline: 2, stages: 'Et*2|t*2|t|tmL|', schedule: zbv}",
       "parallel.stages: E2005 5 stages on 2 ranks, and a V has two a rank");
  EXPECT_EQ(faults("{pipeline: 2, schedule: zbv, expert: 1}"), "");
  says("{pipeline: 2, schedule: interleaved}",
       "parallel.schedule: E2005 interleaved has several stages a rank");
  says("{pipeline: 2, data: 3}",
       "parallel.data: E2005 pipeline 2 x data 3 are 6 ranks; there are 4: data 2, or 6 ranks");
}

}  // namespace
}  // namespace troupe
