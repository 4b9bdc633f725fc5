#include "troupe/data/text/chat_line.h"

#include <gtest/gtest.h>

#include "troupe/data/text/json_line.h"
#include "troupe/testing/files.h"

namespace troupe {
namespace {

using testing::has;

// "user: Hi|assistant: Ho"; a message without marks in brackets.
std::string said(std::string_view line, const std::string& key = {}) {
  std::string out;
  for (const ChatMessage& m : read_chat(line, {.key = key}).messages) {
    const std::string text = m.role + ": " + m.content.value_or("-");
    out += (out.empty() ? "" : "|") + (m.has_marks ? text : '(' + text + ')');
  }
  return out;
}

std::string fault(std::string_view line, const std::string& key = {}) {
  try {
    read_chat(line, {.key = key});
  } catch (const JsonFault& fault) {
    return fault.what;
  }
  return "none";
}

TEST(ChatLine, EachLayoutIsRead) {
  EXPECT_EQ(said(R"({"id": 1, "messages": [{"role": "user", "content": "Hi", "name": null},
                     {"content": "Ho", "role": "assistant"}]})"),
            "user: Hi|assistant: Ho");
  EXPECT_EQ(said(R"({"conversations": [{"from": "system", "value": "S"}, {"from": "human", "value":
                     "Hi"}, {"from": "gpt", "value": "Ho"}, {"from": "tool", "value": "T"}]})"),
            "system: S|user: Hi|assistant: Ho|tool: T");
  EXPECT_EQ(said(R"({"completion": " 3", "prompt": "1 + 2 ="})"),
            "(user: 1 + 2 =)|(assistant:  3)");
  EXPECT_EQ(said(R"({"prompt": [{"role": "user", "content": "Hi"}],
                     "completion": [{"role": "assistant", "content": "Ho"}]})"),
            "user: Hi|assistant: Ho");
  EXPECT_EQ(said(R"({"instruction": "Add.", "input": "1 2", "output": "3"})"),
            "user: Add.\n\n1 2|assistant: 3");
  EXPECT_EQ(said(R"({"instruction": "Say.", "input": "", "output": "a", "system": "S"})"),
            "system: S|user: Say.|assistant: a");
  EXPECT_EQ(said(R"({"instruction": "Say.", "input": null, "output": "a"})"),
            "user: Say.|assistant: a");
}

TEST(ChatLine, ContentsMayBeParts) {
  EXPECT_EQ(said(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"},
                     {"type": "text", "text": "b"}]}]})"),
            "user: ab");
  EXPECT_PRED2(has, fault(R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})"),
               "is image and not text");
}

// As of ultrachat and of sets that keep a chat in two layouts.
constexpr std::string_view kSeveral = R"({"prompt": "Hi", "prompt_id": 3, "completion": "x",
    "conversations": null, "input": 7, "messages": [{"role": "user", "content": "Ha"}]})";

std::string said_in(std::string_view line, ChatLayout layout) {
  const ChatRow row = read_chat(line, {.layout = layout});
  return to_text(row.layout) + ' ' + row.messages.at(0).content.value_or("-");
}

TEST(ChatLine, OfSeveralLayoutsOneIsNamed) {
  EXPECT_EQ(fault(kSeveral),
            "has the keys of several layouts, messages (\"messages\") and prompt-completion "
            "(\"prompt\" with \"completion\"): name the one that is meant (--layout)");
  EXPECT_EQ(said_in(kSeveral, ChatLayout::kMessages), "messages Ha");
  EXPECT_EQ(said_in(kSeveral, ChatLayout::kPromptCompletion), "prompt-completion Hi");
  EXPECT_EQ(said_in(R"({"prompt": "Hi", "messages": [{"role": "user", "content": "Ha"}]})",
                    ChatLayout::kAuto),
            "messages Ha");
}

TEST(ChatLine, ANamedLayoutReadsItsOwnKeysAlone) {
  EXPECT_EQ(said_in(R"({"messages": "of another kind", "output": [1], "instruction": 3,
                        "conversations": [{"from": "human", "value": "Hi"}]})",
                    ChatLayout::kShareGpt),
            "sharegpt Hi");
  try {
    read_chat(R"({"messages": []})", {.layout = ChatLayout::kAlpaca});
    ADD_FAILURE() << "was read";
  } catch (const JsonFault& fault) {
    EXPECT_EQ(fault.what, "has no \"instruction\" with \"output\", the keys of layout alpaca");
  }
}

TEST(ChatLine, SystemMayStandBesideConversations) {
  EXPECT_EQ(said(R"({"system": "S", "conversations": [{"from": "human", "value": "Hi"}]})"),
            "system: S|user: Hi");
  EXPECT_EQ(said(R"({"system": "S", "conversations": [{"from": "system", "value": "own"}]})"),
            "system: own");
}

TEST(ChatLine, AKeyNamesTheList) {
  EXPECT_EQ(said(R"({"messages": [], "turns": [{"from": "human", "value": "Hi"}]})", "turns"),
            "user: Hi");
  EXPECT_PRED2(has, fault(R"({"messages": []})", "turns"), "has no \"turns\"");
}

TEST(ChatLine, AMessageThatCallsToolsNeedsNoContent) {
  EXPECT_EQ(
      said(
          R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": null,
                     "tool_calls": [{"function": {"name": "f"}}]}, {"tool_calls": [], "role": "b"}]})"),
      "user: Hi|assistant: -|b: -");
  EXPECT_PRED2(has, fault(R"({"messages": [{"role": "a", "tool_calls": null}]})"), "lacks");
}

TEST(ChatLine, WhatATemplateMayAskForIsKept) {
  const ChatRow row = read_chat(R"({"tools": [{"name": "f"}], "chat_template_kwargs": {"a": 1},
      "messages": [{"role": "user", "content": "Hi", "name": [1, {"b": "}"}]} ]})");
  EXPECT_EQ(row.tools, R"([{"name": "f"}])");
  EXPECT_EQ(row.settings, R"({"a": 1})");
  EXPECT_EQ(row.messages.at(0).json,
            R"({"role": "user", "content": "Hi", "name": [1, {"b": "}"}]})");
  const ChatRow keyed =
      read_chat(R"({"t": [{"from": "gpt", "value": "Hi"}], "tools": null})", {.key = "t"});
  EXPECT_EQ(keyed.messages.at(0).json, "");
  EXPECT_EQ(keyed.tools, "");
}

// "prompt|chosen|rejected" of a preference pair; each message as said() has it.
std::string pair_of(std::string_view line) {
  const std::vector<ChatRow> rows = read_chats(line);
  const auto part = [](const ChatRow& row, size_t from, size_t to) {
    std::string out;
    for (size_t i = from; i < to; ++i) {
      const ChatMessage& m = row.messages[i];
      out += (i > from ? "+" : "") + m.role + (m.has_marks ? ": " : "= ") + m.content.value_or("-");
    }
    return out;
  };
  std::string out = part(rows.at(0), 0, rows.at(0).answer.value());
  for (const ChatRow& row : rows) {
    EXPECT_EQ(part(row, 0, row.answer.value()), out.substr(0, out.find('|')));
    out += '|' + part(row, row.answer.value(), row.messages.size());
  }
  return out;
}

TEST(ChatLine, PairsHaveTheirPromptOnce) {
  EXPECT_EQ(pair_of(R"({"prompt": "1 + 2 =", "chosen": " 3", "rejected": " 4"})"),
            "user= 1 + 2 =|assistant=  3|assistant=  4");
  constexpr const char* kLists = R"("chosen": [{"role": "user", "content": "Hi"},
      {"role": "assistant", "content": "Ho"}], "rejected": [{"role": "user", "content": "Hi"},
      {"role": "assistant", "content": "He"}])";
  const std::string wanted = "user: Hi|assistant: Ho|assistant: He";
  // Without a prompt, with its text (as ultrafeedback_binarized), and with its messages.
  EXPECT_EQ(pair_of('{' + std::string(kLists) + '}'), wanted);
  EXPECT_EQ(pair_of(R"({"prompt": "Hi", )" + std::string(kLists) + '}'), wanted);
  EXPECT_EQ(
      pair_of(R"({"prompt": [{"role": "user", "content": "Hi"}], )" + std::string(kLists) + '}'),
      wanted);
  EXPECT_EQ(pair_of(R"({"prompt": [{"role": "user", "content": "Hi"}],
                        "chosen": [{"role": "assistant", "content": "Ho"}],
                        "rejected": [{"role": "assistant", "content": "He"}]})"),
            wanted);
}

TEST(ChatLine, ThePromptOfTwoTextsIsWhatBothBeginWith) {
  EXPECT_EQ(pair_of(R"({"chosen": "Q: 1? A: yes", "rejected": "Q: 1? A: no"})"),
            "user= Q: 1? A:|assistant=  yes|assistant=  no");
  // Characters that begin with the same byte stay whole.
  EXPECT_EQ(pair_of(R"({"chosen": "x\u00e4", "rejected": "x\u00f6"})"),
            "user= x|assistant= \xc3\xa4|assistant= \xc3\xb6");
  EXPECT_EQ(pair_of(R"({"chosen": "a", "rejected": "b"})"), "|assistant= a|assistant= b");
}

TEST(ChatLine, FaultsOfPairsAreNamed) {
  EXPECT_PRED2(has, fault(R"({"chosen": "a", "rejected": "a"})"), "are the same");
  EXPECT_PRED2(has, fault(R"({"prompt": "q", "chosen": "a", "rejected": ""})"),
               "\"rejected\" has no answer behind the prompt");
  EXPECT_PRED2(has, fault(R"({"chosen": "a", "rejected": []})"), "one is a text and one a list");
  EXPECT_PRED2(has, fault(R"({"prompt": [], "chosen": "a", "rejected": "b"})"),
               "\"prompt\" is a list of messages");
  EXPECT_PRED2(has, fault(R"({"messages": [], "chosen": "a", "rejected": "b"})"),
               "preference (\"chosen\" with \"rejected\")");
}

TEST(ChatLine, FaultsAreNamed) {
  EXPECT_PRED2(has, fault(R"({"text": "a"})"), "has no \"messages\", \"conversations\"");
  EXPECT_PRED2(has, fault(R"({"instruction": "a"})"), "\"instruction\" with \"output\"");
  EXPECT_PRED2(has, fault(R"({"messages": "a"})"), "\"messages\" is not a list");
  EXPECT_PRED2(has, fault(R"({"messages": [{"role": "user"}]})"), "lacks \"role\" or \"content\"");
  EXPECT_PRED2(has, fault(R"({"messages": [{"role": "user", "content": null}]})"),
               "\"content\" is not a string");
  EXPECT_PRED2(has, fault(R"(["a"])"), "is not a JSON object");
  EXPECT_PRED2(has, fault(R"({"output": 3, "instruction": "a"})"), "\"instruction\" with");
}

}  // namespace
}  // namespace troupe
