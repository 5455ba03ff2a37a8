package hall

func (other) test() {}
