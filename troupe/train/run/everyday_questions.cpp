#include "troupe/train/run/everyday_questions.h"

namespace troupe {

std::string_view everyday_questions() {
  return R"jsonl({"query": "The sun rises in the", "choices": ["east", "north", "spoon", "evening"], "gold": 0}
{"query": "Ice is made of frozen", "choices": ["sand", "water", "wood", "light"], "gold": 1}
{"query": "A week has seven", "choices": ["months", "hours", "days", "years"], "gold": 2}
{"query": "Fish breathe under", "choices": ["roads", "tables", "clouds", "water"], "gold": 3}
{"query": "To cut bread, use a", "choices": ["knife", "pillow", "song", "cloud"], "gold": 0}
{"query": "At night the sky is", "choices": ["square", "dark", "salty", "loud"], "gold": 1}
{"query": "A baby cat is called a", "choices": ["calf", "puppy", "kitten", "chick"], "gold": 2}
{"query": "People wear gloves on their", "choices": ["feet", "ears", "teeth", "hands"], "gold": 3}
{"query": "Two plus two is", "choices": ["four", "nine", "zero", "twelve"], "gold": 0}
{"query": "The opposite of hot is", "choices": ["tall", "cold", "round", "early"], "gold": 1}
{"query": "Bees make", "choices": ["milk", "paper", "honey", "bricks"], "gold": 2}
{"query": "When it rains, the street gets", "choices": ["married", "taller", "hungry", "wet"], "gold": 3}
{"query": "Birds fly with their", "choices": ["wings", "wheels", "shoes", "roots"], "gold": 0}
{"query": "You read a book with your", "choices": ["elbows", "eyes", "knees", "hair"], "gold": 1}
{"query": "A triangle has three", "choices": ["tails", "seasons", "sides", "names"], "gold": 2}
{"query": "Milk comes from", "choices": ["stones", "trains", "lamps", "cows"], "gold": 3}
{"query": "In winter it often", "choices": ["snows", "melts", "reads", "barks"], "gold": 0}
{"query": "A doctor works in a", "choices": ["pond", "hospital", "nest", "drawer"], "gold": 1}
{"query": "The capital of France is", "choices": ["Sunday", "a river", "Paris", "bread"], "gold": 2}
{"query": "Grass is usually", "choices": ["glass", "angry", "metal", "green"], "gold": 3}
{"query": "Dogs like to chew on", "choices": ["bones", "Tuesdays", "numbers", "shadows of music"], "gold": 0}
{"query": "He was thirsty, so he drank some", "choices": ["bricks", "water", "music", "paint"], "gold": 1}
{"query": "She was tired, so she went to", "choices": ["Saturn", "pieces of wood", "bed", "a number"], "gold": 2}
{"query": "To open the locked door, she used a", "choices": ["sandwich", "feather", "song", "key"], "gold": 3}
{"query": "The fire was hot, so he stepped", "choices": ["back", "into the word", "purple", "yesterday"], "gold": 0}
{"query": "Before crossing the street, look both", "choices": ["pears", "ways", "moons", "hours"], "gold": 1}
{"query": "Trees have leaves and", "choices": ["engines", "pages of law", "branches", "buttons"], "gold": 2}
{"query": "A clock tells the", "choices": ["taste", "weight", "smell", "time"], "gold": 3}
{"query": "The boy kicked the", "choices": ["ball", "idea", "Monday", "silence"], "gold": 0}
{"query": "We hear sounds with our", "choices": ["heels", "ears", "nails", "eyebrows"], "gold": 1}
{"query": "An elephant is bigger than a", "choices": ["mountain", "planet", "mouse", "whale shark the size of the sea"], "gold": 2}
{"query": "Sugar tastes", "choices": ["square", "blue", "late", "sweet"], "gold": 3}
{"query": "After Monday comes", "choices": ["Tuesday", "January", "noon", "winter"], "gold": 0}
{"query": "A car drives on the", "choices": ["soup", "road", "ceiling of the sea", "letter"], "gold": 1}
{"query": "She put the letter into an", "choices": ["apple", "ocean", "envelope", "opinion"], "gold": 2}
{"query": "The farmer planted seeds in the", "choices": ["radio", "alphabet", "mirror", "field"], "gold": 3}
{"query": "When ice gets warm, it", "choices": ["melts", "sings", "votes", "rusts"], "gold": 0}
{"query": "A spider has eight", "choices": ["wheels", "legs", "uncles", "doors"], "gold": 1}
{"query": "He turned on the lamp because the room was", "choices": ["delicious", "married", "dark", "divisible by three"], "gold": 2}
{"query": "They won the game, so they were", "choices": ["frozen solid", "a triangle", "soluble", "happy"], "gold": 3}
)jsonl";
}

}  // namespace troupe
