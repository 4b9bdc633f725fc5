#include "troupe/train/loop/step_agreement.h"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// What rank 0's clock decides; a save also on the signal of any rank.
constexpr bool StepDuties::*kByRank0[] = {&StepDuties::line, &StepDuties::record, &StepDuties::eval,
                                          &StepDuties::replicas, &StepDuties::save};
constexpr bool StepDuties::*kByAny[] = {&StepDuties::save_asked, &StepDuties::status,
                                        &StepDuties::save_failed};

}  // namespace

std::vector<double> StepAgreement::votes(const Position& before, const Position& after) {
  own_ = cadences_.due(before, after);
  own_.save_failed = saves_.failed();
  own_reason_ = stop_.own_reason();
  const BatchLoader::Ahead ahead = loader_.ahead();
  std::vector<double> out(ahead.begin(), ahead.end());
  out.push_back(own_reason_.empty() ? 0 : 1);
  for (const auto duty : kByRank0) out.push_back(run_.writes_logs() && own_.*duty ? 1 : 0);
  for (const auto duty : kByAny) out.push_back(own_.*duty ? 1 : 0);
  return out;
}

StepDuties StepAgreement::decide(const std::vector<double>& sums) {
  BatchLoader::Ahead ahead;
  constexpr size_t kStop = std::tuple_size_v<BatchLoader::Ahead>;
  TROUPE_CHECK(sums.size() == kStop + 1 + std::size(kByRank0) + std::size(kByAny), sums.size());
  std::copy_n(sums.begin(), kStop, ahead.begin());
  loader_.agree(ahead);
  if (sums[kStop] > 0) {
    stop_.stop_for(own_reason_.empty() ? "another rank was asked to stop" : own_reason_);
  }
  StepDuties out = own_;
  const double* value = &sums[kStop + 1];
  for (const auto duty : kByRank0) out.*duty = *value++ > 0;
  for (const auto duty : kByAny) out.*duty = *value++ > 0;
  out.save |= out.save_asked;
  return out;
}

}  // namespace troupe
