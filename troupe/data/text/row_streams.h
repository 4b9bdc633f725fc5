// Rows as JSONL: those of a CSV or TSV text, and the items of a JSON array.
//   name,text          {"text": "good"}
//   a,good             {"text": "it says \"well\""}
//   b,"it says ""well"""
// A row of CSV ends with the line, unless it ends within quotes; the first row names the columns. A
// row with another number of fields than there are columns becomes a line that
// add_document refuses and names.
#pragma once

#include <memory>
#include <string>

#include "troupe/data/text/text_stream.h"

namespace troupe {

// The column `key`, or all where it is empty. E3001 where the first row has no column `key`, with the
// columns that there are.
std::unique_ptr<TextStream> csv_rows(const std::string& path, std::unique_ptr<TextStream> text,
                                     char separator, const std::string& key);

// Each item of the array that the text is, in a line: line breaks between its values become spaces.
std::unique_ptr<TextStream> array_rows(const std::string& path, std::unique_ptr<TextStream> text);

}  // namespace troupe
