// Opens the model of train.teacher (train/recipe/teacher.h).
#pragma once

#include <string>

#include "troupe/train/recipe/recipe.h"
#include "troupe/train/step/learner.h"

namespace troupe {

// What train.teacher.path names now: RUN/step-001200, of a run its newest complete step, or a model
// hub's folder. Reads no weights. Throws as teacher_model() does, E4002 where no step is complete,
// E4005 where a hub's folder lacks weights, and E3108 where the teacher has a tokenizer that is not
// data.tokenizer.
std::string teacher_folder(const Recipe& recipe);

// Opens it for a learner that has the output head, in the type and on the device of its weights;
// `folder` is teacher_folder() of the recipe.
void open_teacher(const Recipe& recipe, const std::string& folder, Learner& learner);

}  // namespace troupe
