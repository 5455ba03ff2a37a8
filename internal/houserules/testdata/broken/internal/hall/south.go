package hall

func (*T[K]) south() {}

func (other) south() {}
