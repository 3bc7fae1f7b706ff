#include "tutti/core/agreement/plan.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tutti/core/agreement/checks.h"

namespace tutti {

Plan Plan::build(uint32_t id, std::vector<Tensor> tensors, int64_t fusion_bytes,
                 int64_t partition_bytes) {
  Plan plan;
  plan.id = id;
  plan.tensors = std::move(tensors);
  std::vector<Placeable> places;
  std::vector<int64_t> cuts;
  // The first bucket is small, so that the first transfer begins early.
  constexpr int64_t kFirstPart = 4;
  int64_t first_bytes = fusion_bytes / kFirstPart;
  const auto place = [&] {
    for (auto& bucket : plan_buckets(places, fusion_bytes, partition_bytes, cuts, first_bytes))
      plan.buckets.push_back(std::move(bucket));
    if (!places.empty()) first_bytes = 0;
    places.clear();
    cuts.clear();
  };
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const auto& tensor = plan.tensors[i];
    const auto index = static_cast<int64_t>(i);
    plan.index.emplace(tensor.name, index);
    if (!tensor.signature.group.empty()) plan.groups[tensor.signature.group].push_back(index);
    if (traits(tensor.signature.kind).may_fuse) {
      places.push_back({index, &tensor.signature, {}, gathered(tensor.signature, tensor.rows)});
      if (tensor.cut) cuts.push_back(index);
      continue;
    }
    place();
    const int64_t count = tensor.signature.shape.count();
    plan.buckets.push_back({bucket_key(tensor.signature), {{index, 0, count, 0}}, count});
  }
  place();
  return plan;
}

bool Plan::differs_by_rank() const {
  return std::ranges::any_of(
      tensors, [](const Tensor& tensor) { return exchanges_parts(tensor.signature.kind); });
}

Plan Plan::told_to(int rank, int size) const {
  Plan told = *this;
  for (auto& tensor : told.tensors) {
    if (!exchanges_parts(tensor.signature.kind)) continue;
    const auto own = tensor.rows.begin() + rank * size;
    tensor.given.assign(own, own + size);
    tensor.rows = for_rank(tensor.answer(), rank, size).rows;
  }
  return told;
}

void Plan::encode(WireWriter& writer) const {
  writer.put(id).put(static_cast<uint32_t>(tensors.size()));
  for (const auto& tensor : tensors) {
    writer.text(tensor.name).put(static_cast<uint8_t>(tensor.cut));
    writer.numbers(tensor.rows).numbers(tensor.given);
    tutti::encode(writer, tensor.signature);
  }
}

Plan Plan::decode(WireReader& reader, int64_t fusion_bytes, int64_t partition_bytes) {
  const auto id = reader.get<uint32_t>();
  const auto count = reader.get<uint32_t>();
  std::vector<Tensor> tensors;
  for (uint32_t i = 0; i < count; ++i) {
    Tensor tensor;
    tensor.name = reader.text();
    tensor.cut = reader.get<uint8_t>() != 0;
    tensor.rows = reader.numbers();
    tensor.given = reader.numbers();
    tensor.signature = decode_signature(reader);
    tensors.push_back(std::move(tensor));
  }
  check_plan(tensors, partition_bytes);
  return build(id, std::move(tensors), fusion_bytes, partition_bytes);
}

Response Plan::Tensor::answer() const {
  Response response;
  response.name = name;
  response.signature = signature;
  response.rows = rows;
  return response;
}

int64_t gathered(const Signature& signature, const std::vector<int64_t>& rows) {
  if (!joins_parts(signature.kind)) return 0;
  return std::accumulate(rows.begin(), rows.end(), int64_t{0}) * signature.shape.row_count();
}

bool Plan::Tensor::fits(const Request& request, int rank, int size) const {
  if (signature.kind == CollectiveKind::allreduce) return request.signature == signature;
  Signature planned = signature;
  const auto* own_rows = &rows;  // the rows that the request must have
  if (joins_parts(signature.kind)) {
    // Each rank has its own number of rows.
    if (planned.shape.rank() > 0)
      planned.shape = planned.shape.with_rows(rows[static_cast<size_t>(rank)]);
    own_rows = nullptr;
  } else if (exchanges_parts(signature.kind)) {
    if (planned.shape.rank() == 0) return false;
    planned.shape =
        planned.shape.with_rows(std::accumulate(given.begin(), given.end(), int64_t{0}));
    own_rows = &given;
  } else if (is_described_by_root(signature.kind) && rank != signature.root) {
    // Only root's tensor must match. answers() checks the outputs of the other ranks.
    planned.dtype = request.signature.dtype;
    planned.wire = request.signature.wire;
    planned.shape = request.signature.shape;
    planned.layout = request.signature.layout;
    own_rows = nullptr;
  }
  return request.signature == planned && (own_rows == nullptr || request.rows == *own_rows) &&
         answers(request, answer(), rank, size);
}

bool PlanLearner::can_replay(const Signature& signature) {
  const auto may_replay = traits(signature.kind).may_replay;
  return may_replay == MayReplay::everywhere ||
         (may_replay == MayReplay::on_host && signature.placement == DeviceKind::cpu);
}

std::optional<std::vector<Plan::Tensor>> PlanLearner::observe(const Response& response) {
  if (in_step_.contains(response.name)) {
    // The name occurs again, so a new step begins here. The step that ends now differs from the
    // last one.
    equal_ = 0;
    last_.clear();
    for (const auto& tensor : step_)
      last_.emplace(tensor.name, std::pair(tensor.signature, tensor.rows));
    step_.clear();
    in_step_.clear();
  }
  if (step_.size() >= kMostTensors) disturb();
  in_step_.emplace(response.name, step_.size());
  // An operation that was requested after a wait cannot share a bucket with the operation that the
  // thread waited for.
  step_.push_back({response.name, response.signature,
                   response.after_wait || cuts_.contains(response.name), response.rows});
  step_.back().signature.begin = 0;
  if (!same_as_last()) return {};
  ++equal_;
  auto complete = std::exchange(step_, {});
  in_step_.clear();
  if (equal_ < needed_ - 1) return {};
  equal_ = 0;
  last_.clear();
  return complete;
}

bool PlanLearner::same_as_last() const {
  if (last_.empty() || step_.size() != last_.size()) return false;
  return std::all_of(step_.begin(), step_.end(), [&](const Plan::Tensor& tensor) {
    const auto found = last_.find(tensor.name);
    return found != last_.end() && found->second == std::pair(tensor.signature, tensor.rows);
  });
}

void PlanLearner::disturb() {
  equal_ = 0;
  step_.clear();
  in_step_.clear();
  last_.clear();
}

void PlanLearner::failed(const std::vector<std::string>& missing) {
  disturb();
  if (cuts_.size() + missing.size() > kMostTensors) cuts_.clear();
  cuts_.insert(missing.begin(), missing.end());
  constexpr int kMost = 1 << 16;
  needed_ = std::min(needed_ * 2, std::max(equal_steps_, kMost));
}

}  // namespace tutti
