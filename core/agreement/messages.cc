#include "tutti/core/agreement/messages.h"

namespace tutti {

namespace {

enum class Form : uint8_t { full = 0, known = 1, join = 2 };
inline constexpr int kFormCount = 3;

}  // namespace

void encode_request(WireWriter& writer, const Request& request, const NameCache& cache) {
  if (request.join) {
    writer.put(Form::join);
    return;
  }
  const int64_t id = cache.find(request.name, request.signature);
  if (id >= 0) {
    writer.put(Form::known).put(id);
  } else {
    writer.put(Form::full).text(request.name);
    encode(writer, request.signature);
  }
  writer.numbers(request.rows).put(request.output_rows);
  writer.put(static_cast<uint8_t>(request.after_wait));
}

bool decode_request(WireReader& reader, const NameCache& cache, Request& request,
                    int64_t& unknown) {
  bool known = true;
  switch (reader.enumeration<Form>(kFormCount)) {
    case Form::join:
      request.join = true;
      return true;
    case Form::known: {
      unknown = reader.get<int64_t>();
      const auto* entry = cache.find(unknown);
      known = entry != nullptr;
      if (known) {
        request.name = entry->name;
        request.signature = entry->signature;
      }
      break;
    }
    case Form::full:
      request.name = reader.text();
      request.signature = decode_signature(reader);
      break;
  }
  request.rows = reader.numbers();
  request.output_rows = reader.get<int64_t>();
  request.after_wait = reader.get<uint8_t>() != 0;
  return known;
}

void encode_response(WireWriter& writer, const Response& response, const NameCache& cache) {
  if (response.all_joined) {
    writer.put(Form::join).numbers(response.rows);
    return;
  }
  const int64_t id = response.error ? -1 : cache.find(response.name, response.signature);
  if (id >= 0) {
    writer.put(Form::known).put(id);
  } else {
    writer.put(Form::full).text(response.name);
    encode(writer, response.signature);
    writer.put(static_cast<uint8_t>(response.error.has_value()));
    if (response.error) encode(writer, *response.error);
  }
  writer.numbers(response.rows).numbers(response.joined).put(response.pair);
}

Response decode_response(WireReader& reader, const NameCache& cache) {
  Response response;
  switch (reader.enumeration<Form>(kFormCount)) {
    case Form::join:
      response.all_joined = true;
      response.rows = reader.numbers();
      return response;
    case Form::known: {
      const auto* known = cache.find(reader.get<int64_t>());
      if (known == nullptr)
        throw DamagedMessage("an answer names an operation by a number that no answer gave before");
      response.id = known->id;
      response.name = known->name;
      response.signature = known->signature;
      break;
    }
    case Form::full:
      response.name = reader.text();
      response.signature = decode_signature(reader);
      if (reader.get<uint8_t>() != 0) response.error = decode_error(reader);
      break;
  }
  response.rows = reader.numbers();
  response.joined = reader.numbers();
  response.pair = reader.get<int64_t>();
  return response;
}

void encode(WireWriter& writer, const RankStatus& status) {
  writer.text(status.last_submitted).put(status.plan).put(status.next_sequence);
  writer.put(status.next_tag).put(status.outstanding);
  writer.put(status.blocking_calls).text(status.blocking).put(static_cast<uint8_t>(status.joined));
}

RankStatus decode_status(WireReader& reader) {
  RankStatus status;
  status.last_submitted = reader.text();
  status.plan = reader.get<uint32_t>();
  status.next_sequence = reader.get<uint64_t>();
  status.next_tag = reader.get<uint64_t>();
  status.outstanding = reader.get<uint64_t>();
  status.blocking_calls = reader.get<uint64_t>();
  status.blocking = reader.text();
  status.joined = reader.get<uint8_t>() != 0;
  return status;
}

}  // namespace tutti
