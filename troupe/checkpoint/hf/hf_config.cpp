#include "troupe/checkpoint/hf/hf_config.h"

#include <algorithm>
#include <iterator>

#include "troupe/checkpoint/hf/families/config_fields.h"
#include "troupe/core/config/json.h"
#include "troupe/core/file/hub_file.h"

namespace troupe {
namespace {

constexpr int64_t kMaxConfig = int64_t{16} << 20;  // bytes

void tokens_and_type(ConfigFields& f) {
  f.keys.pass({"bos_token_id",
               "eos_token_id",
               "pad_token_id",
               "architectures",
               "use_cache",
               "transformers_version",
               "_name_or_path",
               "output_router_logits",
               "pretraining_tp",
               "auto_map",
               "ep_size",
               "seq_aux",
               "initializer_context_length",
               "id2label",
               "label2id",
               "return_dict",
               "output_hidden_states",
               "output_attentions",
               "chunk_size_feed_forward",
               "is_encoder_decoder",
               "problem_type",
               "model_type"},
              f.passed);
  f.keys.field({"torch_dtype", "dtype"}, f.config.dtype, std::string("float32"));
  constexpr const char* kTypes[] = {"float32", "bfloat16", "float16"};
  if (std::ranges::find(kTypes, f.config.dtype) == std::end(kTypes)) {
    f.keys.refuse("torch_dtype", "float32, bfloat16 and float16 are supported");
  }
}

void read_quantization(ConfigFields& f) {
  if (!f.keys.has("quantization_config")) return void(f.keys.at("quantization_config"));
  HfKeys q = f.keys.section("quantization_config");
  std::string method, format;
  q.field({"quant_method"}, method, std::string());
  if (method == "fp8") {
    q.only("fmt", std::string("e4m3"));
    const Json& size = q.at("weight_block_size");
    const auto is_size = [](const Json& n) {
      return n.is_number_unsigned() && n.get<uint64_t>() - 1 < (1U << 16);
    };
    if (!size.is_array() || size.size() != 2 || !is_size(size[0]) || !is_size(size[1])) {
      q.refuse("weight_block_size", "two sizes of 1 to 65536 are expected");
    }
    f.config.quantization = HfQuantization::kFp8Blocks;
    f.config.block_rows = size[0], f.config.block_columns = size[1];
  } else if (method == "mxfp4") {
    f.config.quantization = HfQuantization::kMxfp4;
  } else {
    q.refuse("quant_method", "fp8 (blocks of e4m3) and mxfp4 are supported");
  }
  f.config.notes.push_back("the weights are stored as " + method + " and are widened");
}

const HfFamily* family_of(HfKeys& keys) {
  std::string type;
  keys.field({"model_type"}, type, std::string());
  const HfFamily* const family = find_hf_family(type);
  const std::string_view missing = hf_missing_operator(type);
  if (!missing.empty()) {
    keys.refuse("model_type",
                "there is no operator here for what it needs: " + std::string(missing));
  }
  if (family == nullptr) keys.refuse("model_type", "one of " + hf_model_types() + " are supported");
  return family;
}

}  // namespace

HfConfig parse_hf_config(const std::string& text, const std::string& file) {
  // Bounded in depth and number, and no name twice, before the tree is built.
  if (parse_json(text, file, Code::kBadModelConfig).kind != Yaml::Kind::kMap) {
    fail(Code::kBadModelConfig, file, "is not a JSON object");
  }
  Json json = parse_in_order(text);
  HfKeys keys(json, true, file + ": ");
  HfConfig out;
  Json passed = Json::object();
  out.family = family_of(keys);
  ConfigFields fields{out, keys, passed};
  try {
    out.family->read_or_write(fields);
    tokens_and_type(fields);
    read_quantization(fields);
    fields.check_layer_sizes();
  } catch (const nlohmann::json::exception& e) {
    fail(Code::kBadModelConfig, file, "has a value of the wrong sort:", e.what());
  }
  const Json unknown = keys.unknown();
  for (const auto& [name, value] : unknown.items()) {
    out.notes.push_back(file + ": the key " + name + " = " + value.dump().substr(0, 100) +
                        " is not known; it is kept for export");
  }
  out.passed = passed.dump();
  out.unknown = unknown.dump();
  return out;
}

HfConfig read_hf_config(const std::string& folder) {
  const std::string text =
      read_hub_file(folder, "config.json", Code::kUnreadableCheckpoint, kMaxConfig);
  return parse_hf_config(text, folder + "/config.json");
}

std::string to_json(const HfConfig& config) {
  Json json = Json::object();
  json["architectures"] = Json::array({config.family->architecture});
  json["model_type"] = config.family->model_type;
  HfConfig copy = config;
  Json passed = parse_in_order(config.passed);
  passed.erase("architectures");
  passed.erase("model_type");
  HfKeys keys(json, false, "config.json: ");
  ConfigFields fields{copy, keys, passed};
  config.family->read_or_write(fields);
  tokens_and_type(fields);
  auto& object = json.get_ref<Json::object_t&>();
  const auto written = static_cast<int64_t>(object.size());  // by us, and few
  const Json unknown = parse_in_order(config.unknown);
  for (const auto& [name, value] : unknown.get_ref<const Json::object_t&>()) {
    const auto end = object.begin() + written;
    const auto at = std::find_if(object.begin(), end,
                                 [&key = name](const auto& field) { return field.first == key; });
    if (at != end) {
      at->second = value;
    } else {
      object.emplace_back(name, value);
    }
  }
  return json.dump(2) + '\n';
}

HfConfig hf_config_of(const ModelConfig& model) {
  const HfFamily* const family = hf_family_of(model);
  if (family == nullptr) {
    fail(Code::kBadModelConfig, "model", "has a form that none of the families", hf_model_types(),
         "can hold");
  }
  HfConfig out;
  out.family = family;
  out.model = model;
  return out;
}

}  // namespace troupe
