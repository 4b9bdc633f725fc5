#include "troupe/train/step/unit_values.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <string>

#include "troupe/core/check.h"

namespace troupe {

UnitValues::UnitValues(const Model& model, const at::TensorOptions& options, const Faults& faults,
                       Pulse& pulse, std::shared_ptr<StageChannels> channels)
    : model_(model),
      options_(options),
      faults_(faults),
      pulse_(pulse),
      channels_(std::move(channels)) {}

void UnitValues::begin(std::vector<int64_t> own_tokens, const Pass& pass) {
  own_tokens_ = std::move(own_tokens);
  pass_ = pass;
  bool first = pass.kind == PassKind::kOther;
  for (const int64_t tokens : own_tokens_) first |= computed_.insert({pass.kind, tokens}).second;
  channels_->begin(first);
}

void UnitValues::end() {
  channels_->finish();
  values_.clear();
}

// Rows of the input of the chunk that a transfer names, which are also those of its gradient.
int64_t UnitValues::rows_of(const Action& transfer) const {
  return own_tokens_[static_cast<size_t>(transfer.microbatch)] *
         states_after(model_.config(), transfer.chunk - 1, pass_.training);
}

void UnitValues::send(const Action& action) {
  const UnitValue value = carried_by(action, model_.has_unit(action.chunk));
  const int64_t rows = rows_of(action);
  const PulseScope scope(pulse_, Phase::kSend, action.chunk, static_cast<int>(model_.num_units()),
                         action.microbatch);
  faults_.at("send", pass_.step);
  at::Tensor x = values_.at(value).x;
  if (!x.defined()) x = at::zeros({rows, model_.config().width}, options_);
  values_.erase(value);
  if (rows == 0) return;
  channels_->send(action.peer, value.gradient ? StageMessage::kGradient : StageMessage::kActivation,
                  x.contiguous());
}

void UnitValues::receive(const Action& action) {
  const UnitValue name = carried_by(action, model_.has_unit(action.chunk));
  const int64_t rows = rows_of(action);
  Value value{.x = at::empty({rows, model_.config().width}, options_)};
  if (rows > 0) {
    value.arriving = channels_->recv(
        action.peer, name.gradient ? StageMessage::kGradient : StageMessage::kActivation, value.x);
  }
  values_[name] = std::move(value);
}

at::Tensor UnitValues::arrived(const Action& action, Value& value) {
  if (value.arriving.done()) return value.x;
  const auto units = static_cast<int>(model_.num_units());
  const PulseScope scope(pulse_, Phase::kRecv, action.chunk, units, action.microbatch);
  faults_.at("recv", pass_.step);
  try {
    value.arriving.wait();
  } catch (const Error& error) {
    const bool forward = action.kind == Kind::kForward || action.kind == Kind::kForwardLight;
    throw Error(std::string("microbatch ") + std::to_string(action.microbatch) + ": the " +
                    (forward ? "input of " : "gradient of the output of ") +
                    unit_name(model_.config(), action.chunk) + ": " + error.what(),
                error.code());
  }
  return value.x;
}

at::Tensor UnitValues::input_of(const Action& action) {
  if (action.chunk == 0) return {};
  return arrived(action, values_.at(troupe::input_of(action)));
}

at::Tensor UnitValues::gradient_of_output(const Action& action) {
  const auto found = values_.find(output_gradient_of(action));
  return found == values_.end() ? at::Tensor() : arrived(action, found->second);
}

void UnitValues::set_output(const Action& action, const at::Tensor& h) {
  values_[output_of(action)] = {h.detach()};
}

void UnitValues::set_input_gradient(const Action& action, const at::Tensor& gradient) {
  values_[input_gradient_of(action)] = {gradient};
}

void UnitValues::drop_after(const Action& action, bool training) {
  for (const UnitValue& value : dropped_by(action, training)) values_.erase(value);
}

}  // namespace troupe
