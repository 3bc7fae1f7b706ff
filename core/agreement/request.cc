#include "tutti/core/agreement/request.h"

#include <fmt/format.h>

#include <algorithm>

#include "tutti/core/agreement/checks.h"

namespace tutti {

std::string Signature::describe() const {
  return fmt::format("{}{}", to_string(dtype), shape.to_string());
}

Response for_rank(const Response& response, int rank, int size) {
  Response told = response;
  if (!exchanges_parts(response.signature.kind) || response.error) return told;
  const auto of_ranks = static_cast<size_t>(size), place = static_cast<size_t>(rank);
  told.rows.clear();
  for (size_t from = 0; from < of_ranks; ++from)
    told.rows.push_back(response.rows[from * of_ranks + place]);
  told.rows.push_back(*std::max_element(response.rows.begin(), response.rows.end()));
  return told;
}

void encode(WireWriter& writer, const Signature& signature) {
  writer.put(signature.kind).put(signature.dtype).put(signature.wire).put(signature.op);
  writer.put(signature.placement).put(signature.root).put(signature.priority);
  writer.put(signature.prescale).put(signature.postscale).put(signature.begin);
  writer.put(signature.place).put(signature.layout).put(static_cast<uint8_t>(signature.updates));
  writer.text(signature.group).put(signature.group_size).numbers(signature.shape.extents());
}

Signature decode_signature(WireReader& reader) {
  Signature signature;
  signature.kind = reader.enumeration<CollectiveKind>(kCollectiveKindCount);
  signature.dtype = reader.enumeration<DataType>(kDataTypeCount);
  signature.wire = reader.enumeration<DataType>(kDataTypeCount);
  signature.op = reader.enumeration<ReduceOp>(kReduceOpCount);
  signature.placement = reader.enumeration<DeviceKind>(3);
  signature.root = reader.get<int32_t>();
  signature.priority = reader.get<int32_t>();
  signature.prescale = reader.get<double>();
  signature.postscale = reader.get<double>();
  signature.begin = reader.get<int64_t>();
  signature.place = reader.get<int64_t>();
  signature.layout = reader.get<uint64_t>();
  signature.updates = reader.get<uint8_t>() != 0;
  signature.group = reader.text();
  signature.group_size = reader.get<int32_t>();
  const auto extents = reader.numbers();
  try {
    signature.shape = Shape(extents);
  } catch (const Error& error) {
    throw DamagedMessage(error.what());  // every rank checks a shape before it sends it
  }
  check_signature(signature);
  return signature;
}

void encode(WireWriter& writer, const Error& error) {
  writer.put(static_cast<uint8_t>(error.code())).put(static_cast<int32_t>(error.rank()));
  writer.text(error.tensor()).text(error.what());
}

Error decode_error(WireReader& reader) {
  const auto code = reader.enumeration<ErrorCode>(static_cast<int>(ErrorCode::internal) + 1);
  need_of_message(code >= ErrorCode::invalid_argument, "it reports an error without a code");
  const auto rank = reader.get<int32_t>();
  auto tensor = reader.text();
  return Error(code, reader.text()).with_rank(rank).with_tensor(tensor);
}

}  // namespace tutti
