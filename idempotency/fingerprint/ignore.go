package fingerprint

// pointerSet is a set of JSON pointers as a tree of their tokens. A nil set is
// empty.
type pointerSet struct {
	// whole: a pointer ends here.
	whole bool
	// members by the form that a name has in jsonForm.
	members map[string]*pointerSet
	// elements are those members whose names are indexes of an array, too.
	elements map[int]*pointerSet
}

func (s *pointerSet) add(tokens []string) {
	for _, token := range tokens {
		if s.members == nil {
			s.members = make(map[string]*pointerSet)
			s.elements = make(map[int]*pointerSet)
		}
		name := quote(token)
		next := s.members[name]
		if next == nil {
			next = new(pointerSet)
			s.members[name] = next
			if i, ok := arrayIndex(token); ok {
				s.elements[i] = next
			}
		}
		s = next
	}
	s.whole = true
}

func (s *pointerSet) member(form []byte) *pointerSet {
	if s == nil {
		return nil
	}
	return s.members[string(form)]
}

func (s *pointerSet) element(i int) *pointerSet {
	if s == nil {
		return nil
	}
	return s.elements[i]
}
